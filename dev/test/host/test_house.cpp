// The house: CONTRIBUTING.md's map of rooms, of which none includes a file of one above, so that there is no circle; the
// ratchet; what builds without dev/, which is the evidence; and what reads the tables of faults.
#include <fstream>
#include <map>
#include <set>

#include "dev/test/support/train_program.h"

using namespace llmc;

namespace {

constexpr size_t kMostFiles = 26;  // of a room

// from the top down
std::vector<std::string> rooms_of_map() {
    std::vector<std::string> rooms;
    std::ifstream map("CONTRIBUTING.md");
    for (std::string line; std::getline(map, line);) {
        if (line.starts_with("llmc/")) { rooms.push_back(line.substr(0, line.find(' '))); }
    }
    return rooms;
}

// the place of a file's room in the map, of the folder that is nearest; rooms.size() if there is none
size_t room_of(const std::vector<std::string>& rooms, fs::path file) {
    for (fs::path folder = file.parent_path(); !folder.empty(); folder = folder.parent_path()) {
        const auto at = std::find(rooms.begin(), rooms.end(), folder.string());
        if (at != rooms.end()) { return (size_t)(at - rooms.begin()); }
    }
    return rooms.size();
}

}  // namespace

TEST_CASE("rooms: every include points to its own room or to one below it in the map") {
    const std::vector<std::string> rooms = rooms_of_map();
    std::map<std::string, size_t> files;
    size_t includes = 0;
    for (const auto& entry : fs::recursive_directory_iterator("llmc")) {
        const fs::path path = entry.path();
        if (!entry.is_regular_file()) { continue; }
        files[path.parent_path().string()]++;
        const size_t from = room_of(rooms, path);
        INFO(path.string());
        REQUIRE(from < rooms.size());
        const std::string start = "#include \"";
        for (const std::string& line : lines_with(read_bytes(path), start)) {
            const std::string included = line.substr(start.size(), line.rfind('"') - start.size());
            INFO("includes " << included);
            CHECK(fs::exists(included));
            const size_t to = room_of(rooms, included);
            REQUIRE(to < rooms.size());
            CHECK(from <= to);
            includes++;
        }
    }
    CHECK(includes > 500);
    for (const auto& [room, count] : files) { CHECK_MESSAGE(count <= kMostFiles, room); }
    for (const std::string& room : rooms) { CHECK_MESSAGE(fs::exists(room), room); }
}

namespace {

// what is wanted of a file's includes, of all that it reaches
void check_without_cuda(const std::string& path, std::set<std::string>* seen) {
    if (!seen->insert(path).second) { return; }
    INFO(path);
    for (const std::string& line : lines_with(read_bytes(path), "#include ")) {
        for (const char* of_cuda : {"cuda", "cublas", "cupti", "nccl", "cooperative_groups"}) {
            CHECK_FALSE(line.starts_with(std::string("#include <") + of_cuda));
        }
        const std::string start = "#include \"";
        if (line.starts_with(start)) {
            check_without_cuda(line.substr(start.size(), line.rfind('"') - start.size()), seen);
        }
    }
}

}  // namespace

TEST_CASE("rooms: what the CPU's programs and tests include needs no header of CUDA") {
    std::set<std::string> seen;
    for (const char* folder : {".", "llmc", "data", "dev/test/host", "dev/test/model", "dev/test/ops",
                               "dev/test/support", "dev/test/durability"}) {
        const auto check = [&](const fs::directory_entry& entry) {
            if (entry.path().extension() == ".cpp") {
                check_without_cuda(entry.path().lexically_normal(), &seen);
            }
        };
        if (std::string(folder) == "llmc") {
            for (const auto& entry : fs::recursive_directory_iterator(folder)) { check(entry); }
        } else {
            for (const auto& entry : fs::directory_iterator(folder)) { check(entry); }
        }
    }
    CHECK(seen.size() > 150);
    CHECK(seen.contains("llmc/model/state_shares.h"));
}

TEST_CASE_FIXTURE(InFolder, "rooms: the ratchet lets no room grow, no number unless the commit says house:") {
    fs::copy_file("dev/test/ratchet.py", folder / "ratchet.py");
    const auto run = [&](const std::string& script) {
        return run_train(folder.path(), {"-c", "cd " + folder.path() + " && " + script}, "/bin/sh");
    };
    if (run("git --version && python3 -c 'import tomllib'").exit_code != 0) { return; }
    const std::string git = "git -c user.name=a -c user.email=a@b ", python = "python3 ratchet.py ";
    std::string said =
        run("git init -q && mkdir dev && echo a > dev/a.h && touch dev/house.toml && git add -A && " +
            python + "--write && git add -A && " + git + "commit -q -m first && " + python)
            .out;
    CHECK_MESSAGE(said.ends_with(" 0 failed, 0 skipped\n"), said);
    said = run("echo b > dev/b.h && git add -A && " + python).out;
    CHECK_MESSAGE(contains(said, "ERROR: dev: 3 files, expected at most 2"), said);
    said = run(python + "--write && " + git + "commit -q -a -m more && " + python).out;
    CHECK_MESSAGE(contains(said, "raises dev: files 2 to 3; its message does not say house:"), said);
    said = run(git + "commit -q --amend -m 'more (house: 1)' && " + python).out;
    CHECK_MESSAGE(said.ends_with(" 0 failed, 0 skipped\n"), said);
}

TEST_CASE_FIXTURE(InFolder, "house: everything but the checks builds without dev/, and the trainer trains") {
    train_program();
    const ProgramRun run = run_train(folder.path(), {}, "dev/test/house.sh");
    CHECK_MESSAGE(run.exit_code == 0, run.out, run.err);
}

// ---- tables of faults: one that is misread, or that no longer fits the sources, must not pass as caught ------

namespace {

const std::string kSource = "one\n  two\none more\n  two\nthree\nfour\nfour\nfour\n";

// a block with the lines to find and their replacement, for the file source.h of the working folder
std::string block(const std::string& changes, const std::string& keys = "expect: sum\n") {
    return "fault cpu-one: The sum is wrong.\nfile: source.h\n" + keys + changes;
}

// faults.pl with this one table
ProgramRun run_faults(const TempFolder& folder, const std::string& table, const Words& command) {
    fs::copy_file("dev/test/faults.pl", folder / "faults.pl", fs::copy_options::overwrite_existing);
    fs::create_directories(folder / "room");
    write_bytes(folder / "room/faults.txt", table);
    write_bytes(folder / "source.h", kSource);
    return run_train(folder.path(), command, folder / "faults.pl");
}

}  // namespace

TEST_CASE_FIXTURE(InFolder, "faults: whole lines are replaced, and every key is read") {
    const auto planted = [&](const std::string& changes) {
        CHECK(run_faults(folder, block(changes), {"plant", "cpu-one", folder.path()}).exit_code == 0);
        return read_bytes(folder / "source.h");
    };
    CHECK(planted("-one\n-  two\n+1\n+\n+2\n") == "1\n\n2\none more\n  two\nthree\nfour\nfour\nfour\n");
    CHECK(planted("-three\n") == "one\n  two\none more\n  two\nfour\nfour\nfour\n");
    CHECK(planted("change: e mo => y  $1  \\1\n") ==
          "one\n  two\nony  $1  \\1re\n  two\nthree\nfour\nfour\nfour\n");
    const auto got = [&](const std::string& table, const std::string& fault, const std::string& key) {
        return run_faults(folder, table, {"get", fault, key}).out;
    };
    CHECK(got(block("-one\n", "expect: a: b  expect: c\n"), "cpu-one", "expect") == "a: b\nc\n");
    CHECK(got(block("-one\n", "expect: a  test: x: the y*\n"), "cpu-one", "run") ==
          "--test-case=x:?the?y*\n");
    CHECK(got("fault gpu-x: x\nfile: source.h  expect: x\n-one\n", "gpu-x", "program") == "test_gpt2cu\n");
}

TEST_CASE_FIXTURE(InFolder, "faults: what does not fit sources or form is refused, and changes nothing") {
    const std::string one = block("-one\n");
    for (const auto& [table, message] : std::initializer_list<std::pair<std::string, const char*>>{
             {block("-  two\n+2\n"), "faults.txt:1: the lines to find stand 2 times"},
             {block("-four\n+4\n"), "the lines to find stand 3 times"},
             {block("-four\n-four\n+4\n"), "the lines to find stand 2 times"},
             {block("-two\n+2\n"), "the lines to find stand 0 times"},
             {block("+2\n"), "'cpu-one' has no line to find"},
             {block("-one\n", ""), "'cpu-one' has no expect: line"},
             {block("-one\n+one\n"), "'cpu-one' changes nothing"},
             {block("change: one => 1\n"), "the lines to find stand 2 times"},
             {block("change: three => three\n"), "'cpu-one' changes nothing"},
             {block("change: three => 3\nchange: two => 2\n"), "'cpu-one' has two changes"},
             {block("change: three => 3\n-one\n"), "'cpu-one' has a change: and lines"},
             {block("-one\n", "expect: x\nfile: other.h\n"), "'cpu-one' has several file: lines"},
             {block("-one\n", "expect: x\narch: sm_70\n"), "'cpu-one' has arch: sm_70"},
             {block("-one\n", "expected: x\n"), "faults.txt:3: expected one of"},
             {one + "\n" + one, "there are two faults 'cpu-one'"},
             {"-one\n", "a block begins with 'fault NAME: what is wrong'"},
             {"", "no fault is called 'cpu-one'"}}) {
        check_run(run_faults(folder, table, {"plant", "cpu-one", folder.path()}), 1, {message});
        CHECK(read_bytes(folder / "source.h") == kSource);
    }
}
