// How OpenMP threads wait for each other.
#pragma once
#include <unistd.h>
#include <cstdlib>

namespace llmc {

// By default libgomp's threads spin at every barrier for milliseconds. On a machine that does anything else
// beside, a spinning thread keeps the one it waits for off the core: a step was 28 times slower beside three
// other processes, and as fast as alone with a short spin. The runtime reads the setting before main, hence
// the restart of the program. Nothing happens where the user has set a policy. Call it first in main.
inline void wait_politely(char** argv) {
    bool chosen = std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr;
    if (chosen || setenv("GOMP_SPINCOUNT", "1000", 1) != 0) { return; }
    char self[4096] = {};  // by its real path, so that ps and top show the program's name
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) > 0) {
        execv(self, argv);  // comes back only if that failed, and then nothing is lost but speed
    }
}

}  // namespace llmc
