#!/bin/bash
# Everything of the package on a machine with a GPU and PyTorch, without a network: the wheel in a fresh
# environment, the tests by both backends, the host's cost, the race by both clocks, models in training.
#   python/test/gpu.sh WHEELS OUT   WHEELS: a folder with plumb_layernorm-*.whl and the peers' wheels, and in
#                                   WHEELS/site what of theirs is no wheel
# Each part has a time limit; a line of each says how it ended, and results lie in OUT. Exit 1 if the wheel or
# a test failed.
set -u
wheels=$(realpath "$1") && out=$(realpath -m "$2") && mkdir -p "$out" && cd "$(dirname "$0")/../.." || exit 2
environment=$(mktemp -d)/environment
python=$environment/bin/python
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
failed=0 begin=$SECONDS

part() {  # name seconds command...: 0 of timeout is the command's own end
    local name=$1 limit=$2 status start=$SECONDS
    shift 2
    echo "== $name: $*"
    timeout "$limit" "$@" >"$out/$name.log" 2>&1
    status=$?
    grep -vE '^(  warnings.warn|  _warn_once|$)' "$out/$name.log" | tail -"${LINES_OF_A_PART:-45}"
    echo "== $name: exit $status after $((SECONDS - start)) s, $((SECONDS - begin)) s in all"
    return $status
}

install() {
    python3 -m venv --without-pip --system-site-packages "$environment"
    local packages pip peer
    packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    # python3 may be of an environment itself, whose packages the new one does not see
    python3 -c 'import site; print("\n".join(site.getsitepackages()))' >"$packages/above.pth"
    pip="python3 -m pip --python $python install -q --no-index --no-deps --no-compile"
    $pip "$wheels"/plumb_layernorm-*.whl || return 1
    for peer in "$wheels"/*.whl; do
        case $peer in */plumb_layernorm-*) continue ;; esac
        $pip "$peer" || echo "not installed: $peer"
    done
    if [ -d "$wheels/site" ]; then cp -r "$wheels/site/." "$packages"; fi
    cd "$out" && "$python" -c 'import torch, plumb_layernorm
print(torch.__version__, torch.cuda.get_device_name(), plumb_layernorm.__file__, plumb_layernorm.backend)
x = torch.randn(8, 768, device="cuda", requires_grad=True)
plumb_layernorm.LayerNorm(768, device="cuda")(x).square().sum().backward()
print("gradient", x.grad.abs().max().item())'
}

export -f install
export wheels out environment python
LINES_OF_A_PART=15 part install 60 bash -c install || exit 1
workers=$("$python" -c 'import xdist; print("-n 6")' 2>/dev/null)
# shellcheck disable=SC2206
tests=("$python" -m pytest -q -p no:cacheprovider $workers --durations=5 python/test)
part tests 130 "${tests[@]}" || failed=1
PLUMB_LAYERNORM_BACKEND=stable part tests_stable 60 "${tests[@]}" -k "not compile and not tutorial" ||
    failed=1
part host_cost 35 "$python" dev/bench/bench_package.py --json "$out/host_cost.json"
PLUMB_LAYERNORM_BACKEND=stable part host_cost_stable 20 "$python" dev/bench/bench_package.py --rounds 3 \
    --json "$out/host_cost_stable.json"
LINES_OF_A_PART=75 part race 150 "$python" dev/bench/bench_layernorm.py --sweep --gpt2 --quick \
    --out "$out/race"
part models 240 "$python" dev/bench/bench_models.py --models gpt2,vit --json "$out/models.json"
echo "gpu.sh: $([ $failed = 0 ] && echo passed || echo FAILED), $((SECONDS - begin)) s"
exit $failed
