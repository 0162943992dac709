// CONTRIBUTING.md's map: the rooms of llmc/, each above those whose files it may include. As no file includes one of a room
// above, there is no circle.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "dev/test/support/test_files.h"
#include "dev/test/support/train_program.h"

namespace {

namespace fs = std::filesystem;
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
        std::ifstream source(path);
        for (std::string line; std::getline(source, line);) {
            const std::string start = "#include \"";
            if (!line.starts_with(start)) { continue; }
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
    for (const auto& [room, count] : files) {
        INFO(room);
        CHECK(count <= kMostFiles);
    }
    for (const std::string& room : rooms) {
        INFO(room);
        CHECK(fs::exists(room));
    }
}

TEST_CASE("rooms: the ratchet lets no room grow, and no number unless the commit says house:") {
    llmc::TempFolder folder;
    fs::copy_file("dev/test/ratchet.py", folder / "ratchet.py");
    const auto run = [&](const std::string& script) {
        return llmc::run_train(folder.path(), {"-c", "cd " + folder.path() + " && " + script}, "/bin/sh");
    };
    if (run("git --version && python3 -c 'import tomllib'").exit_code != 0) { return; }
    const std::string git = "git -c user.name=a -c user.email=a@b ", python = "python3 ratchet.py ";
    std::string said =
        run("git init -q && mkdir dev && echo a > dev/a.h && touch dev/house.toml && git add -A && " +
            python + "--write && git add -A && " + git + "commit -q -m first && " + python)
            .out;
    CHECK_MESSAGE(said.ends_with(" 0 failed, 0 skipped\n"), said);
    said = run("echo b > dev/b.h && git add -A && " + python).out;
    CHECK_MESSAGE(said.find("ERROR: dev: 3 files, expected at most 2") != said.npos, said);
    said = run(python + "--write && " + git + "commit -q -a -m more && " + python).out;
    CHECK_MESSAGE(said.find("raises dev: files 2 to 3; its message does not say house:") != said.npos, said);
    said = run(git + "commit -q --amend -m 'more (house: 1)' && " + python).out;
    CHECK_MESSAGE(said.ends_with(" 0 failed, 0 skipped\n"), said);
}
