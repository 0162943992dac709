// rotate: a warp's stretch of a row at any address, moved 16 bytes at a time. What a lane has does not
// depend on the address: shuffles and byte permutes turn the aligned vectors that memory gives into the
// lane's own; for a store, the lane's own into aligned ones. The elements of the stretch are read and
// written, and not one beside them.
#pragma once
#include "llmc/layernorm/kernel.cuh"

namespace llmc::layernorm {

// elements of this pointer past a 16-byte boundary
template <typename T>
__device__ inline int past_boundary(const T* p) {
    return (unsigned)(uintptr_t)p % 16 / sizeof(T);
}

template <typename T>
using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;

// word j, a constant after unrolling
template <typename T, int n>
__device__ inline uint32_t& word_of(Elements<T, n>& x, int j) {
    return reinterpret_cast<uint32_t*>(&x)[j];
}

// Keeps an address in registers, where the compiler would work it out again for every access.
template <typename T>
__device__ inline T* kept(T* p) {
    asm volatile("" : "+l"(p));
    return p;
}

template <int i>
using Constant = std::integral_constant<int, i>;

// act(Constant<i>) for the i that is the case, of from <= i < to. The same i in all of a warp.
template <int from, int to, typename Act>
__device__ inline void with_constant(int i, const Act& act) {
    constexpr int middle = (from + to) / 2;
    if constexpr (to - from == 1) {
        act(Constant<from>{});
    } else if (i < middle) {
        with_constant<from, middle>(i, act);
    } else {
        with_constant<middle, to>(i, act);
    }
}

// A stretch of a row: `count` vectors of n neighbouring elements, vector lane + lanes * i in x[i] of a group
// of `lanes` lanes. The first `unguarded` of the k are there in every lane: lanes * unguarded < count <= lanes * k. The
// groups of a warp have stretches as long, and as far past a 16-byte boundary.
template <typename T, int lanes, int k, int unguarded>
struct Stretch {
    static constexpr int n = Vec<T>::size, words = 4;
    static_assert(n <= lanes && unguarded < k);

    Elements<T, n> x[k];
    Bits<T> edge;  // while the stretch is on its way

    __device__ static int lane() { return threadIdx.x % lanes; }
    // of this group's lanes
    __device__ static uint32_t from(uint32_t given, int lane) {
        return __shfl_sync(kAllLanes, given, lane, lanes);
    }

    // Asks for the stretch that begins at p, `shift` elements past a boundary: the vectors that lie in it
    // whole, and the parts at its begin and end, which make up one more.
    __device__ void load(const T* p, int shift, int count) {
        if (lane() < n) {
            const T* at = p + ((lane() < shift ? n * count : 0) + lane() - shift);
            edge = *reinterpret_cast<const Bits<T>*>(at);
        }
        const T* whole = kept(p - shift + n * lane());
#pragma unroll
        for (int i = 0; i < k; i++) {
            x[i] = {};
            bool inside = (i > 0 || lane() > 0) && (i < unguarded || i * lanes + lane() < count);
            if (inside) { x[i] = llmc::load<n>(whole + i * lanes * n); }
        }
    }

    // What was asked for becomes the lanes' vectors.
    __device__ void place(int shift, int count) {
        uint32_t part = edge;
        if constexpr (sizeof(T) == 2) { part = __byte_perm(part, from(part, lane() + 1), 0x5410); }
#pragma unroll
        for (int j = 0; j < words; j++) {
            uint32_t word = from(part, j * n / words);
            if (lane() == 0) { word_of(x[0], j) = word; }
        }
        turn(shift, count);
    }

    // Each vector becomes its elements from `shift` on, and then the first ones of the vector after it. After
    // the last vector comes the first.
    __device__ void turn(int shift, int count) {
        with_constant<0, n>(shift, [&](auto constant) { turn_by<constant.value>(count); });
    }
    template <int shift>
    __device__ void turn_by(int count) {
        constexpr int bytes = shift * (int)sizeof(T), whole = bytes / 4, more = ceil_div(bytes, 4);
        uint32_t first[more + 1];
#pragma unroll
        for (int j = 0; j < more; j++) { first[j] = from(word_of(x[0], j), 0); }
#pragma unroll
        for (int i = 0; i < k && shift > 0; i++) {
            uint32_t both[2 * words];
#pragma unroll
            for (int j = 0; j < words; j++) { both[j] = word_of(x[i], j); }
#pragma unroll
            for (int j = 0; j < more; j++) {
                // each gives to the lane before it; lane 0, to the group's last, of its next vector
                uint32_t given = lane() == 0 && i < k - 1 ? word_of(x[(i + 1) % k], j) : both[j];
                int which = i * lanes + (lane() == 0 ? lanes : lane());
                if (i >= unguarded && which == count) { given = first[j]; }
                both[words + j] = from(given, lane() + 1);
            }
#pragma unroll
            for (int j = 0; j < words; j++) {
                uint32_t low = both[whole + j], high = both[(whole + j + 1) % (2 * words)];
                word_of(x[i], j) = whole == more ? low : __byte_perm(low, high, 0x5432);
            }
        }
    }

    // To p, shift elements past a boundary. The last vector, turned, is the stretch's end and its begin:
    // these go element by element.
    __device__ void store(T* p, int shift, int count) const {
        int before = -shift & (n - 1);  // elements before a boundary
        Stretch turned = *this;
        turned.turn(before, count);
        T* whole = kept(p + before + n * lane());
#pragma unroll
        for (int i = 0; i < k; i++) {
            if (i < unguarded || i * lanes + lane() < count - 1) {
                llmc::store(whole + i * lanes * n, turned.x[i]);
            }
        }
        uint32_t part = 0;
#pragma unroll
        for (int j = 0; j < words; j++) {
            uint32_t word = word_of(turned.x[unguarded], j);
#pragma unroll
            for (int i = unguarded + 1; i < k; i++) {
                word = i * lanes < count ? word_of(turned.x[i], j) : word;
            }
            word = from(word, count - 1);
            if (lane() * words / n == j) { part = word; }
        }
        if (sizeof(T) == 2 && lane() % 2 == 1) { part >>= 16; }
        if (lane() < n) {
            T* at = p + (lane() < n - before ? n * (count - 1) + before + lane() : lane() - (n - before));
            *reinterpret_cast<Bits<T>*>(at) = (Bits<T>)part;
        }
    }
};

}  // namespace llmc::layernorm
