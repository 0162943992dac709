// A byte n-gram model with interpolated Witten-Bell back-off: what a text costs when only the last few bytes
// are known. The sample corpus is measured against it: a story that such a model predicts well does not need
// a transformer.
//   p(c | context) = (count(context c) + kinds(context) * p(c | context without its first byte))
//                    / (count(context) + kinds(context))
// with kinds = how many different tokens followed the context; at the bottom, all tokens alike. [Witten &
// Bell 1991]
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace llmc {

class ByteModel {
public:
    static constexpr int kMaxOrder = 5;
    static constexpr int kVocab = 257;

    // counts every token after the first, in its contexts of 0 to kMaxOrder tokens; a context does not reach
    // beyond the end-of-text token that starts its story, because what is before it tells nothing
    explicit ByteModel(std::span<const uint16_t> tokens) : slots_(1 << 16) {
        for (size_t i = 1; i < tokens.size(); i++) {
            for (int order = 0, reach = reach_of(tokens, i); order <= reach; order++) {
                uint64_t context = pack(tokens, i, order);
                Slot& pair = slot(context << 9 | (tokens[i] + 1));
                bool fresh = pair.count++ == 0;
                Slot& whole =
                    slot(context << 9);  // looked up after the pair is used: slot() may move the table
                whole.count++;
                whole.kinds += fresh;
            }
        }
    }

    // mean -ln p over every token after the first
    double nats_per_token(std::span<const uint16_t> tokens, int order) const {
        double nats = 0;
        for (size_t i = 1; i < tokens.size(); i++) {
            double p = 1.0 / kVocab;
            for (int n = 0, reach = std::min(order, reach_of(tokens, i)); n <= reach; n++) {
                uint64_t context = pack(tokens, i, n);
                const Slot* whole = find(context << 9);
                if (whole == nullptr) { break; }
                const Slot* pair = find(context << 9 | (tokens[i] + 1));
                double count = pair == nullptr ? 0 : pair->count;
                p = (count + whole->kinds * p) / ((double)whole->count + whole->kinds);
            }
            nats -= std::log(p);
        }
        return nats / (double)(tokens.size() - 1);
    }

private:
    static constexpr uint16_t kEndOfText = 256;

    // key = the context's tokens at 9 bits each after a leading 1, then 9 bits: 0 for the context itself,
    // else token + 1
    struct Slot {
        uint64_t key = 0;  // 0 = free
        uint32_t count = 0, kinds = 0;
    };

    static int reach_of(std::span<const uint16_t> tokens, size_t i) {
        int reach = 0;
        while (reach < kMaxOrder && (size_t)reach < i) {
            reach++;
            if (tokens[i - reach] == kEndOfText) { break; }
        }
        return reach;
    }

    static uint64_t pack(std::span<const uint16_t> tokens, size_t i, int order) {
        uint64_t key = 1;
        for (int k = order; k >= 1; k--) { key = key << 9 | tokens[i - k]; }
        return key;
    }

    // where the key is, or the free slot where it belongs (open addressing; the table is at most half full)
    size_t place(uint64_t key) const {
        size_t mask = slots_.size() - 1;
        size_t at = (key * 0x9e3779b97f4a7c15ull >> 20) & mask;
        while (slots_[at].key != 0 && slots_[at].key != key) { at = (at + 1) & mask; }
        return at;
    }

    const Slot* find(uint64_t key) const {
        const Slot& s = slots_[place(key)];
        return s.key == key ? &s : nullptr;
    }

    Slot& slot(uint64_t key) {
        Slot* s = &slots_[place(key)];
        if (s->key == key) { return *s; }
        if (2 * ++used_ > slots_.size()) {
            std::vector<Slot> old(slots_.size() * 2);
            old.swap(slots_);
            for (const Slot& o : old) {
                if (o.key != 0) { slots_[place(o.key)] = o; }
            }
            s = &slots_[place(key)];
        }
        s->key = key;
        return *s;
    }

    std::vector<Slot> slots_;
    size_t used_ = 0;
};

}  // namespace llmc
