// CONTRIBUTING.md's map: the rooms of llmc/, each above those whose files it may include. As no file includes one of a room
// above, there is no circle.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

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
