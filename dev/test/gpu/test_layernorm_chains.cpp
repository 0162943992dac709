// LayerNorm on the GPU, call after call without a pause: launches overlap on Hopper, so each must wait for what the
// calls before it write. Rows are few enough that a launch leaves room for the next one.
#include "dev/test/gpu/layer_test.h"
#include "llmc/layernorm/layernorm.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

// Seven calls, forward or backward, each of which reads what the one before it has written.
template <typename T>
class Chain {
public:
    static constexpr const char* kCalls = "FFBFFBF";
    static constexpr int kCount = 7;

    Chain(int64_t N, int C)
        : N_(N),
          C_(C),
          inp_(floats(N * C, 1)),
          weight_(floats(C, 2)),
          bias_(floats(C, 3)),
          results_(kCount * N * C),
          statistics_(kCount * 2 * N),
          sums_(kCount * 2 * C),
          scratch_((int64_t)layernorm_backward_scratch(C)) {}

    // the bytes that each call wrote; pause: the calls wait for one another here
    std::vector<Bytes> run(bool pause) {
        for_all([](auto& array) {
            check_cuda(cudaMemset(array.data(), kPoison, array.size() * sizeof(array.uploaded()[0])));
        });
        for (int i = 0; i < kCount; i++) {
            if (i == 0 || pause) { check_cuda(cudaDeviceSynchronize()); }
            kCalls[i] == 'F' ? forward(i) : backward(i);
        }
        check_cuda(cudaDeviceSynchronize());
        std::vector<Bytes> wrote(kCount);
        for_all([&](auto& array) {
            check_guards("layernorm chain", array);
            Bytes all = bytes_of(array);
            size_t each = all.size() / kCount;
            for (int i = 0; i < kCount; i++) {
                wrote[i].insert(wrote[i].end(), all.begin() + i * each, all.begin() + (i + 1) * each);
            }
        });
        return wrote;
    }
    std::string name() const { return fmt::format("layernorm chain {} {}x{}", type_name<T>(), N_, C_); }

private:
    template <typename Each>
    void for_all(Each each) {
        each(results_);
        each(statistics_);
        each(sums_);
    }
    T* result(int i) const { return results_.data() + i * N_ * C_; }
    const T* rows(int i) const { return i < 0 ? inp_.data() : result(i); }
    float* mean(int i) const { return statistics_.data() + i * 2 * N_; }

    void forward(int i) {
        layernorm_forward(LayerNormForward<T>{.out = result(i),
                                              .mean = mean(i),
                                              .rstd = mean(i) + N_,
                                              .inp = rows(i - 1),
                                              .weight = weight_.data(),
                                              .bias = bias_.data(),
                                              .N = N_,
                                              .C = C_},
                          kStream);
    }
    // of the forward call before: what it wrote is taken for dout
    void backward(int i) {
        T* dweight = sums_.data() + i * 2 * C_;
        layernorm_backward(LayerNormBackward<T>{.dinp = result(i),
                                                .dweight = dweight,
                                                .dbias = dweight + C_,
                                                .scratch = scratch_.data(),
                                                .dout = rows(i - 1),
                                                .inp = rows(i - 2),
                                                .weight = weight_.data(),
                                                .mean = mean(i - 1),
                                                .rstd = mean(i - 1) + N_,
                                                .N = N_,
                                                .C = C_},
                           kStream);
    }

    int64_t N_;
    int C_;
    DeviceArray<T> inp_, weight_, bias_;
    DeviceArray<T> results_;         // (kCount,N,C): out or dinp
    DeviceArray<float> statistics_;  // (kCount,2,N): mean, rstd of forward
    DeviceArray<T> sums_;            // (kCount,2,C): dweight, dbias of backward
    Scratch scratch_;
};

template <typename T>
void check_chain(int64_t N, int C) {
    Chain<T> chain(N, C);
    std::vector<Bytes> expected = chain.run(true);
    for (int again = 0; again < 5; again++) {
        std::vector<Bytes> found = chain.run(false);
        int i = 0;
        while (i < chain.kCount && found[i] == expected[i]) { i++; }
        CHECK_MESSAGE(i == chain.kCount, fmt::format("{}: call {} of {} read what was not there yet",
                                                     chain.name(), i + 1, chain.kCount));
    }
}

}  // namespace

TEST_CASE("layernorm regimes: a call waits for those before it") {
    struct Shape {
        int64_t N;
        int C;
    };
    for (Shape s : {Shape{400, 64},
                    {400, 768},
                    {200, 1024},
                    {132, 2048},
                    {132, 4096},
                    {66, 8192},
                    {33, 16384},
                    {16, 32768},
                    {14, 65536},
                    {8, 131072},
                    {4, 262144},
                    {400, 65},
                    {200, 769},
                    {16, 769},
                    {16, 1601},
                    {16, 4097},
                    {8, 8191},
                    {16, 20001}}) {
        check_chain<float>(s.N, s.C);
        check_chain<bf16>(s.N, s.C);
    }
}
