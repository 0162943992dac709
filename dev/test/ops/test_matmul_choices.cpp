// The file of --tune-gemm, and the rule by which an algorithm is chosen.
#include <set>

#include "dev/test/support/test_options.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/run/data.h"
#include "llmc/model/run/plan.h"
#include "llmc/ops/matmul/matmul.h"

using namespace llmc;

namespace {

MatmulChoices example() {
    MatmulChoices all{
        .gpu = "NVIDIA \"H100\"", .multiprocessors = 132, .cublaslt = 130100, .tf32 = true, .choices = {}};
    for (uint64_t k = 1; k <= 3; k++) {
        MatmulChoice c{.kind = {k == 1, k == 2, 768, (int64_t)k << 33, 50304, 14, 0, 4, k == 3},
                       .first_ms = 0.25,
                       .ms = 0.125 * (double)k,
                       .proposals = 64,
                       .same_bits = k != 2};
        for (uint64_t i = 0; i < 8; i++) { c.algorithm[i] = ~k << (8 * i); }
        all.choices.push_back(c);
    }
    return all;
}

void check_refused(const std::string& from, const std::string& to, std::initializer_list<std::string> parts) {
    const std::string text = changed(to_json(example()), from, to);
    CAPTURE(text);
    check_error([&] { parse_matmul_choices(text, "products.json"); }, kExitBadInput, parts);
}

}  // namespace

TEST_CASE("matmul choices: written and read back") {
    const MatmulChoices all = example(), again = parse_matmul_choices(to_json(all), "products.json");
    CHECK(to_json(again) == to_json(all));
    CHECK(again.gpu == all.gpu);
    CHECK(again.cublaslt == all.cublaslt);
    CHECK(again.tf32);
    REQUIRE(again.choices.size() == 3);
    for (size_t i = 0; i < 3; i++) {
        CHECK((again.choices[i].kind == all.choices[i].kind));
        CHECK(again.choices[i].algorithm == all.choices[i].algorithm);
        CHECK(again.choices[i].same_bits == all.choices[i].same_bits);
    }
    TempFolder folder;
    write_bytes(folder / "products.json", to_json(all));
    CHECK(to_json(read_matmul_choices(folder / "products.json")) == to_json(all));
}

TEST_CASE_FIXTURE(InFolder, "matmul choices: log header and run's settings name the file by its content") {
    RunPlan plan;
    Options& o = plan.options;
    o.tune_gemm = folder / "products.json";
    auto header = [&] { return run_header(plan, MemoryPlan{}, Device{"a GPU", 0, ""}, 0, ""); };
    std::set<std::string> headers;
    for (int64_t cublaslt : {130100, 130200}) {
        MatmulChoices all = example();
        all.cublaslt = cublaslt;
        write_bytes(o.tune_gemm, to_json(all));
        const std::string products = recorded_settings(o, "a GPU").at("products");
        CHECK(products.starts_with("those of a --tune-gemm file with XXH3 "));
        CHECK(header().find("\"products\":\"" + products + "\"") != std::string::npos);
        headers.insert(header());
    }
    CHECK(headers.size() == 2);
    o.tune_gemm.clear();
    CHECK(header().find("\"products\"") == std::string::npos);
}

TEST_CASE_FIXTURE(InFolder, "matmul choices: the plan of a GPU's run says which, or how to get faster ones") {
    write_tiny_data(folder.path());
    RunPlan plan;
    Options& o = plan.options;
    o.train_data = folder / "train.bin", o.seq_len = 12;
    const DataLoader data(o.train_data, o.seq_len, o.seed, o.raw_tokens);
    auto text = [&] { return describe_run(plan, data, nullptr, MemoryPlan{}, Device{"a GPU", 0, ""}); };
    CHECK(text().find("products") == std::string::npos);  // on a CPU there is no choice
    o.program = Program::kGpu;
    CHECK(
        contains(text(), "products   | cuBLASLt's first proposals; --tune-gemm FILE, on one GPU, searches"));
    o.tune_gemm = "fast.json";
    CHECK(contains(text(), "products   | those of fast.json (searched for if"));
}

TEST_CASE("matmul choices: what is no such file is refused by field") {
    check_refused("plumb matmul 1", "plumb matmul 2",
                  {"products.json", "format", "plumb matmul 2", "Delete it"});
    check_refused("\"tf32\": true", "\"tf32\": 1", {"\"tf32\""});
    check_refused("\"cublaslt\"", "\"cublas\"", {"\"cublaslt\" is missing"});
    check_refused("\"m\": 768", "\"m\": 0", {"below 1"});
    check_refused("\"algorithm\": \"f", "\"algorithm\": \"g", {"\"algorithm\"", "128 hexadecimal digits"});
    check_refused("\"algorithm\": \"f", "\"algorithm\": \"", {"\"algorithm\"", "128 hexadecimal digits"});
    check_refused("\"products\": [", "\"products\": [7,", {"\"transpose_a\""});
    check_refused("{", "", {"products.json"});
}

TEST_CASE("matmul choices: those of another machine are refused") {
    const MatmulChoices here = example();
    require_same_machine(here, example(), "products.json");
    auto refused = [&](auto change) {
        MatmulChoices other = example();
        change(other);
        check_error([&] { require_same_machine(other, here, "products.json"); }, kExitBadInput,
                    {"products.json", "made for", "but this is", "--tune-gemm searches"});
    };
    refused([](MatmulChoices& c) { c.gpu = "NVIDIA H200"; });
    refused([](MatmulChoices& c) { c.multiprocessors = 114; });
    refused([](MatmulChoices& c) { c.cublaslt++; });
    refused([](MatmulChoices& c) { c.tf32 = false; });
}

TEST_CASE("matmul choices: other bits than the first proposal's only for over 2 % of the time") {
    auto fastest = [](std::vector<double> ms, std::initializer_list<bool> same) {
        return fastest_proposal(ms, {same.begin(), same.size()});
    };
    CHECK(fastest({1.0}, {true}) == 0);
    CHECK(fastest({1.0, 0.99, 0.985}, {true, true, false}) == 1);
    CHECK(fastest({1.0, 0.99, 0.9}, {true, true, false}) == 2);
    CHECK(fastest({1.0, 1.1, 0.981}, {true, true, false}) == 0);
    CHECK(fastest({1.0, 0.5, 0.6}, {true, false, true}) == 1);
    CHECK(fastest({1.0, 0.595, 0.6}, {true, false, true}) == 2);
}
