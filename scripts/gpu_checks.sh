# For the checks of a run on GPUs (check_many_gpus.sh, check_durable_gpu.sh), which source it with their folder: the
# folder is made anew and holds train.bin. passed, failed: how many judge() has counted.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
work=$1
passed=0 failed=0
rm -rf "$work" && mkdir -p "$work" || exit 1

say() { echo "[$SECONDS s] $*"; }
judge() {  # what, 0 = right
    if [ "$2" -eq 0 ]; then passed=$((passed + 1)); say "PASS $1"; else failed=$((failed + 1)); say "FAIL $1"; fi
}

# 16 M tokens of GPT-2's vocabulary, drawn like words are: rank r about 1 / r
python3 - "$work/train.bin" <<'PY'
import random, struct, sys
random.seed(1)
words = [min(50255, int(50256 ** random.random()) - 1) for _ in range(1 << 20)]
with open(sys.argv[1], "wb") as f:
    f.write(struct.pack("<256i", 20240520, 1, 16 << 20, *[0] * 253))
    for k in range(16):
        f.write(struct.pack(f"<{1 << 20}H", *(words[k * 9973:] + words[:k * 9973])))
PY
