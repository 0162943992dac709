// HellaSwag: the file of questions byte by byte and damaged, data/make_hellaswag, which ending is the answer,
// and the programs that ask.
#include <random>

#include "dev/test/support/any_model.h"
#include "dev/test/support/reference_model.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/base/stop_signal.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/host/tokens/tokenizer.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/eval/validation.h"

using namespace llmc;

namespace {

// two examples with byte-level ids
std::string good_file() {
    return header_bytes({20240522, 1, 2, 36, 257}) +
           token_bytes({65535, 36, 0, 2, 4, 3, 97, 98, 99, 1, 100, 2, 101, 102, 1, 256, 1, 103}) +
           token_bytes({65535, 30, 1, 0, 4, 1, 120, 1, 1, 1, 2, 1, 3, 1, 4});
}

Error error_of_file(const std::string& bytes) {
    TempFolder folder;
    write_bytes(folder / "questions.bin", bytes);
    return error_of([&] { EvalFile file(folder / "questions.bin"); });
}

std::vector<uint16_t> copy(std::span<const uint16_t> x) { return {x.begin(), x.end()}; }

// the file of some examples of random ids
void write_random(const std::string& path, int examples, int vocab_size, uint64_t seed) {
    EvalFileWriter out(vocab_size);
    std::mt19937_64 random(seed);
    const auto ids = [&](size_t most) {
        std::vector<int> x(1 + random() % most);
        for (int& id : x) { id = (int)(random() % (uint64_t)vocab_size); }
        return x;
    };
    for (int i = 0; i < examples; i++) {
        out.add((int)(random() % 4), ids(9), {ids(5), ids(5), ids(5), ids(5)}, "");
    }
    out.write(path);
}

const char* const kLines =
    "{\"ind\": 24, \"ctx\": \"A cat\", \"label\": 2, \"endings\": [\"sat.\", \"ran.\", \"ate it.\", "
    "\"is\"]}\r\n"
    "\n"
    "{\"label\": \"0\", \"ctx\": \"Une \\u00e9cole\", \"endings\": [\"a\", \"b\", \"c\", \"d\"]}";

ProgramRun make_hellaswag(const TempFolder& folder, const std::string& lines, const std::string& more = "") {
    write_bytes(folder / "in.jsonl", lines);
    const std::string program = program_path("data/make_hellaswag");
    REQUIRE_MESSAGE(access(program.c_str(), X_OK) == 0, program,
                    " is missing: run `make data/make_hellaswag`");
    return run_train(folder.path(), words(folder / "in.jsonl --out " + (folder / "out.bin") + " " + more),
                     program);
}

}  // namespace

TEST_CASE_FIXTURE(InFolder, "HellaSwag file: what is in it, byte by byte, ours and llm.c's") {
    const std::string path = folder / "questions.bin";
    write_bytes(path, good_file());
    {
        const EvalFile file(path);
        CHECK(file.vocab_size() == 257);
        REQUIRE(file.examples().size() == 2);
        const EvalExample& first = file.examples()[0];
        CHECK(first.label == 2);
        CHECK(copy(first.context) == std::vector<uint16_t>{97, 98, 99});
        CHECK(copy(first.endings[1]) == std::vector<uint16_t>{101, 102});
        CHECK(copy(first.endings[3]) == std::vector<uint16_t>{103});
        CHECK(copy(file.examples()[1].endings[3]) == std::vector<uint16_t>{4});
        require_vocabulary(file, 257, "the model");
        for (int other : {256, 258}) {
            CAPTURE(other);
            check_error([&] { require_vocabulary(file, other, "the model"); }, kExitBadInput,
                        {"questions.bin has a vocabulary of 257", "the model of " + std::to_string(other)});
        }
    }
    EvalFileWriter out(257);
    out.add(2, {97, 98, 99}, {{{100}, {101, 102}, {256}, {103}}}, "first");
    out.add(0, {120}, {{{1}, {2}, {3}, {4}}}, "second");
    out.write(path);
    CHECK(read_bytes(path) == good_file());
    std::string others = good_file();
    std::memset(others.data() + 16, 0, 4);  // llm.c does not say which vocabulary
    write_bytes(path, others);
    CHECK(EvalFile(path).vocab_size() == 50257);
    const std::vector<int> none, many(32760, 5);
    check_error([&] { out.add(1, none, {{{1}, {2}, {3}, {4}}}, "here"); }, kExitBadInput, {"here", "empty"});
    check_error([&] { out.add(1, many, {{{1}, {2}, {3}, {4}}}, "here"); }, kExitBadInput, {"here", "65534"});
}

TEST_CASE("HellaSwag file: whatever is wrong is refused by name") {
    using Wrong =
        std::tuple<size_t, uint16_t, std::string>;  // at a word of uint16, from the start of the file
    const size_t first = kHeaderBytes / 2, second = first + 18;
    for (const auto& [word, value, name] :
         std::vector<Wrong>{{0, 0, "magic"},
                            {2, 2, "version"},
                            {4, 0, "number of examples"},
                            {4, 1, "size"},
                            {4, 3, "size"},
                            {6, 30, "bytes of example 0"},
                            {9, 2, "vocabulary"},
                            {first, 65534, "start of example 0"},
                            {first + 1, 34, "example 0"},
                            {first + 1, 28, "bytes of example 0"},
                            {first + 1, 35, "bytes of example 0"},
                            {second + 1, 32, "bytes of example 1"},
                            {first + 2, 1, "number of example 0"},
                            {second + 2, 0, "number of example 1"},
                            {second + 3, 4, "right ending of example 1"},
                            {first + 4, 5, "number of endings of example 0"},
                            {first + 5, 0, "length of the context of example 0"},
                            {first + 5, 65535, "length of the context of example 0"},
                            {first + 5, 60, "context of example 0"},
                            {first + 7, 257, "context of example 0"},
                            {first + 9, 0, "length of an ending of example 0"},
                            {first + 9, 40, "an ending of example 0"},
                            {first + 12, 300, "an ending of example 0"}}) {
        std::string bytes = good_file();
        std::memcpy(bytes.data() + 2 * word, &value, 2);
        INFO("wrong.word ", word, ", wrong.value ", value);
        check_error(error_of_file(bytes), kExitBadInput, {"questions.bin", name, "make_hellaswag"});
    }
    for (size_t length = 1; length < good_file().size(); length++) {
        CHECK(error_of_file(good_file().substr(0, length)).exit_code == kExitBadInput);
    }
    CHECK(error_of_file(good_file() + std::string(2, '\0')).exit_code == kExitBadInput);
    CHECK(error_of([] { EvalFile file("no such file"); }).exit_code == kExitBadInput);
}

TEST_CASE("make_hellaswag: the ids of the context and of endings after a blank, with bytes and with a BPE") {
    for (const std::string& name : {std::string(), std::string("dev/test/fixture/bpe")}) {
        CAPTURE(name);
        TempFolder folder;
        const Tokenizer t = name.empty() ? Tokenizer::bytes() : Tokenizer::load(name);
        const ProgramRun run = make_hellaswag(folder, kLines, name.empty() ? "" : "--tokenizer " + name);
        check_run(run, kExitDone, {}, {"2 examples"});
        const EvalFile file(folder / "out.bin");
        CHECK(file.vocab_size() == t.vocab_size());
        REQUIRE(file.examples().size() == 2);
        const auto text = [&](std::span<const uint16_t> ids) {
            std::string all;
            for (uint16_t id : ids) { all += t.decode(id); }
            return all;
        };
        CHECK(file.examples()[0].label == 2);
        CHECK(file.examples()[1].label == 0);
        CHECK(text(file.examples()[0].context) == "A cat");
        CHECK(text(file.examples()[0].endings[2]) == " ate it.");
        CHECK(text(file.examples()[1].context) == "Une \u00e9cole");
        const std::vector<int> ids = t.encode(" ate it.");
        CHECK(copy(file.examples()[0].endings[2]) == std::vector<uint16_t>(ids.begin(), ids.end()));
    }
}

TEST_CASE_FIXTURE(InFolder, "make_hellaswag: what is wrong is named with its line, and nothing is written") {
    const std::string good = "{\"ctx\":\"a\",\"label\":1,\"endings\":[\"a\",\"b\",\"c\",\"d\"]}\n";
    using Wrong = std::pair<std::string, const char*>;
    const auto with = [](const std::string& label, const std::string& endings) {
        return "{\"ctx\":\"a\"," + label + ",\"endings\":" + endings + "}";
    };
    const std::string four = "[\"a\",\"b\",\"c\",\"d\"]", one = "\"label\":1";
    for (const auto& [line, part] :
         {Wrong{"{\"ctx\":1," + one + ",\"endings\":" + four + "}",
                "a text \"ctx\", found one that is no text"},
          Wrong{"{\"Ctx\":\"a\"," + one + "}", "found none, but \"Ctx\", \"label\""},
          Wrong{"{\"ctx\":\"a\",\"endings\":" + four + "}", "found none, as in the test part"},
          Wrong{with("\"label\":4", four), "\"label\" of 0 to 3, found 4"},
          Wrong{with("\"label\":\"x\"", four), "found x"},
          Wrong{with(one, "[\"a\",\"b\",\"c\"]"), "4 \"endings\", found 3"},
          Wrong{with(one, "\"abcd\""), "4 \"endings\", found none"},
          Wrong{with(one, "[\"a\",\"\",\"c\",\"d\"]"), "ending 1"},
          Wrong{"{\"ctx\":\"\"," + one + ",\"endings\":" + four + "}", "empty"},
          Wrong{"{\"ctx\":\"a\",", "JSON"}, Wrong{"[1]", "an object with a text \"ctx\""}}) {
        CAPTURE(line);
        check_run(make_hellaswag(folder, good + line + "\n" + good), kExitBadInput,
                  {"in.jsonl, line 2", part});
        CHECK(!fs::exists(folder / "out.bin"));
    }
    check_run(make_hellaswag(folder, ""), kExitBadInput);
    check_run(make_hellaswag(folder, good, "--tokenizer nowhere"), kExitBadInput);
    check_run(make_hellaswag(folder, good, "--nonsense"), kExitUsage);

    BpeVocabulary large;  // ids of more than 16 bits
    for (int i = 0; i < 256; i++) { large.tokens.push_back(std::string(1, (char)i)); }
    for (int i = 0; i < 65'300; i++) {
        const std::string left(1, (char)(i >> 8)), right(1, (char)i);
        large.tokens.push_back(left + right);
        large.merges.push_back({left, right});
    }
    Tokenizer::of({large, {}, -1, {}}, "large").save(folder.path(), 64);
    check_run(make_hellaswag(folder, good, "--tokenizer " + folder.path()), kExitBadInput,
              {"65556 tokens, more than the 65,536"});
    CHECK(!fs::exists(folder / "out.bin"));
    const std::string input = folder / "in.jsonl";
    const ProgramRun itself =
        run_train(folder.path(), words(input + " --out " + folder.path() + "/./in.jsonl"),
                  program_path("data/make_hellaswag"));
    check_run(itself, kExitUsage, {"this is an input"});
    CHECK(read_bytes(input) == good);
}

// A loss that is a function of the token that is predicted: id / 100.
TEST_CASE_FIXTURE(InFolder, "HellaSwag: the lowest sum and mean; rows too long keep their end; a stop") {
    const std::string path = folder / "questions.bin";
    EvalFileWriter out(257);
    out.add(0, {200, 201}, {{{90}, {50, 50}, {95}, {60, 60}}}, "");                 // sum: 0, mean: 1
    out.add(1, {7}, {{{20, 20, 20}, {30, 1, 1, 1, 1, 1}, {61}, {70}}}, "");         // both: 1
    out.add(3, {1, 2, 3, 4, 5, 6, 7}, {{{9, 9}, {8, 250}, {10, 10}, {9, 9}}}, "");  // both: 0, the first
    out.write(path);
    const EvalFile file(path);
    std::vector<std::vector<int32_t>> targets;
    std::vector<float> losses;
    const auto evaluate = [&](const Batch& batch) {
        losses.assign(batch.targets.size(), 0);
        for (size_t i = 0; i < losses.size(); i++) {
            if (batch.targets[i] != kIgnoreTarget) { losses[i] = (float)batch.targets[i] / 100; }
        }
        targets.push_back(batch.targets);
        CHECK(batch.tokens.size() == (size_t)batch.B * batch.T);
        return Evaluation{losses, {}};
    };
    for (int B : {1, 3, 4, 64}) {
        targets.clear();
        const HellaSwagScore score = *score_hellaswag(file, B, 20, evaluate);
        CHECK(score.examples == 3);
        CHECK(score.right == 2);             // 0 and 1; the third's label is 3
        CHECK(score.right_normalised == 1);  // 1
        CHECK(score.cut == 0);
        CHECK(targets[0].size() % 8 == 0);  // the longest row: 7 + 2 - 1
    }
    targets.clear();
    const HellaSwagScore cut = *score_hellaswag(file, 1, 4, evaluate);
    CHECK(cut.cut == 5);  // 1 + 6 - 1 > 4 once, 7 + 2 - 1 > 4 four times
    // of the second example's second ending the last four tokens are predicted
    CHECK(targets[5] == std::vector<int32_t>{1, 1, 1, 1});
    CHECK(targets[8] == std::vector<int32_t>{-1, -1, 9, 9});
    stop_requested = 15;
    CHECK(!score_hellaswag(file, 1, 20, evaluate));
    stop_requested = 0;
}

TEST_CASE_FIXTURE(InFolder, "HellaSwag: a model's answers are those of the reference, row by row") {
    const GPT2Config c = {16, 37, 64, 2, 2, 16};
    write_random(folder / "questions.bin", 200, c.vocab_size, 3);
    const EvalFile file(folder / "questions.bin");
    GPT2Cpu model(c, 3, 16);
    fill_lively(&model, 7);
    ReferenceModel<double> reference(c, 1, 16);
    copy_states(&reference, model);
    const HellaSwagScore found =
        *score_hellaswag(file, 3, 16, [&](const Batch& batch) { return model.evaluate(batch); });
    int64_t right = 0, normalised = 0;
    for (const EvalExample& example : file.examples()) {
        double sum[4] = {}, mean[4] = {};
        for (int k = 0; k < 4; k++) {
            std::vector<int32_t> all(example.context.begin(), example.context.end());
            all.insert(all.end(), example.endings[k].begin(), example.endings[k].end());
            Batch batch = {
                1, (int)all.size() - 1, {all.begin(), all.end() - 1}, {all.begin() + 1, all.end()}};
            const Evaluation e = reference.evaluate(batch);
            for (size_t i = example.context.size() - 1; i < e.losses.size(); i++) { sum[k] += e.losses[i]; }
            mean[k] = sum[k] / (double)example.endings[k].size();
        }
        right += std::min_element(sum, sum + 4) - sum == example.label;
        normalised += std::min_element(mean, mean + 4) - mean == example.label;
    }
    CHECK(found.right == right);
    CHECK(found.right_normalised == normalised);
    CHECK(right > 0);
    CHECK(right != normalised);
}

TEST_CASE("sub-commands: eval and training ask HellaSwag's questions; another vocabulary is refused") {
    const Runs r("--lr 0.01 --sample-every 0 --val-every 3");
    write_random(r / "questions.bin", 30, 257, 3);
    write_random(r / "others.bin", 30, 256, 3);
    const std::string run_folder = r / "run";
    const ProgramRun run = r.train("run", "--steps 6 --hellaswag-every 2 --hellaswag " + r / "questions.bin");
    std::vector<int> steps;
    double accuracy = -1, normalised = -1;
    for (const Json& line : read_log(run_folder)) {
        if (!line.contains("hellaswag_acc")) { continue; }
        steps.push_back(line["step"]);
        accuracy = line["hellaswag_acc"];
        normalised = line["hellaswag_acc_norm"];
    }
    CHECK(steps == std::vector<int>{2, 4, 6});
    CHECK(
        contains(run.out, fmt::format("step 6 | HellaSwag {:.4f}, normalised {:.4f}", accuracy, normalised)));
    // the end's figures are eval's, of the model that was saved
    const Words eval = {"eval", run_folder, "--hellaswag", r / "questions.bin", "--seq-len", "12"};
    const ProgramRun asked = run_train(r.folder.path(), merged(eval, {"--batch", "3"}));
    check_run(asked, kExitDone, {"only the last of these count"},
              {fmt::format("accuracy    {:.4f},", accuracy), fmt::format("normalised  {:.4f},", normalised)});
    CHECK_FALSE(contains(asked.out, "tokens "));
    // the same as JSON, with each question
    const ProgramRun as_json = run_well(r.folder.path(), merged(eval, {"--json", "--per-question"}));
    const Json result = Json::parse(as_json.out)["hellaswag"];
    CHECK(std::fabs(result["accuracy"].get<double>() - accuracy) < 1e-6);
    CHECK(std::fabs(result["normalised"].get<double>() - normalised) < 1e-6);
    REQUIRE(result["questions"].size() == result["examples"]);
    int right = 0;
    for (const Json& question : result["questions"]) {
        int lowest_sum = 0, lowest_mean = 0;
        const auto sum = [&](int k) { return question["losses"][(size_t)k][0].get<double>(); };
        const auto mean = [&](int k) { return sum(k) / question["losses"][(size_t)k][1].get<double>(); };
        for (int k = 1; k < kEvalEndings; k++) {
            lowest_sum = sum(k) < sum(lowest_sum) ? k : lowest_sum;
            lowest_mean = mean(k) < mean(lowest_mean) ? k : lowest_mean;
        }
        CHECK(question["answer"] == lowest_sum);
        CHECK(question["normalised"] == lowest_mean);
        right += question["label"] == lowest_sum;
    }
    CHECK(std::fabs((double)right / result["examples"].get<double>() - accuracy) < 1e-6);
    const std::string others = r / "others.bin";
    for (const Words& command : {Words{"eval", run_folder, "--hellaswag", others},
                                 r.options("new", "--steps 1 --hellaswag " + others)}) {
        check_run(run_train(r.folder.path(), command), kExitBadInput,
                  {"others.bin has a vocabulary of 256", "257"});
        CHECK(!fs::exists(r / "new"));
    }
    check_run(run_train(r.folder.path(), {"eval", run_folder}), kExitUsage);
}
