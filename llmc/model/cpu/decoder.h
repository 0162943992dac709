// Writing on the CPU in fp32 with a cache of keys and values: a new token costs one row of each layer, not
// the whole context again. Holds the parameters and the cache, and no gradients.
#pragma once
#include <vector>

#include "llmc/model/decoder.h"
#include "llmc/model/model_source.h"

namespace llmc {

class CpuDecoder : public Decoder {
public:
    explicit CpuDecoder(const ModelSource& source);
    const GPT2Config& config() const override { return config_; }
    std::span<const float> append(std::span<const int32_t> tokens) override;
    void clear() override { length_ = 0; }
    int length() const override { return length_; }

private:
    const float* param(int tensor, int layer = 0) const {
        return params_.data() + layout_.offset(tensor, layer);
    }
    void forward(std::span<const int32_t> tokens);         // adds them to the cache; fills x_
    void attention(int layer, int rows);                   // atty_ from qkv_ and the cache
    void norm(int weight, int bias, int layer, int rows);  // normed_ from x_
    void add_product(int weight, int bias, int layer, const float* inp, int rows, int inner);  // x_ +=

    GPT2Config config_;
    ParameterLayout layout_;
    std::vector<float> params_;
    std::vector<float> keys_, values_;  // (L,maxT,C)
    std::vector<float> x_, normed_, qkv_, atty_, wide_, gelu_, proj_, logits_;
    int length_ = 0;
};

}  // namespace llmc
