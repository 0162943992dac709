# plumb: GPT-2 training, and the LayerNorm kernels under it.
#   make            build what this machine can      make train   build, make the sample data, train
#   make test       every check                       make dev/cuda/layernorm_forward   a kernel shootout
#   make spills     register spills of the kernels    make diff-layernorm_forward-1-2   what rung 2 changed
# Settings: CXX, MARCH=native (x86-64-v3 for what is carried elsewhere), ARCH="sm_90a sm_80", NVCC, DEPS=dir, SANITIZE=1

# a plain make uses every core
ifeq ($(filter -j% --jobserver%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(shell nproc)
endif
MARCH ?= native
BUILD ?= build
OUT   ?=# prefix of the programs: "" or a folder with a slash
NVCC  ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))

HOST_SOURCES := $(wildcard llmc/*.cpp)
TEST_SOURCES := $(wildcard dev/test/*.cpp)
SHOOTOUTS    := $(patsubst %.cu,%,$(wildcard dev/cuda/*.cu))
PROGRAMS     := $(OUT)train_gpt2 $(OUT)test_gpt2 $(OUT)data/make_corpus $(OUT)data/make_shards

all: $(PROGRAMS) $(if $(NVCC),$(SHOOTOUTS))
	@echo
	@echo "Built. Next:   make train   trains a small GPT-2 on the sample stories"
	@echo "               make test    checks everything"

# ---- dependencies: found or fetched once, see scripts/setup.sh --------------------------------------------------------
build/deps.mk: scripts/setup.sh
	@CXX="$(CXX)" DEPS="$(DEPS)" scripts/setup.sh
ifneq ($(MAKECMDGOALS),clean)
-include build/deps.mk
endif

# ---- host code --------------------------------------------------------------------------------------------------------
comma     := ,
# -Wno-restrict: gcc 12 sees overlaps in std::string that are not there (gcc bug 105651)
CXXFLAGS  := -std=c++20 -march=$(MARCH) -fno-math-errno -fopenmp -Wall -Wextra -Wno-restrict
OPTIMIZE  := $(if $(SANITIZE),-O1 -g -fno-omit-frame-pointer -fsanitize=address$(comma)undefined -fno-sanitize-recover=all,-O3)
COMPILE    = $(CXX) $(CXXFLAGS) $(OPTIMIZE) -I. $(DEPS_CPPFLAGS) -MMD -MP
LINK       = $(CXX) $(CXXFLAGS) $(OPTIMIZE)
BLAS      := -Wl,--as-needed -lopenblas -l:libxxhash.a

objects = $(patsubst %.cpp,$(BUILD)/%.o,$(1))

$(BUILD)/%.o: %.cpp build/deps.mk
	@mkdir -p $(@D)
	$(COMPILE) -c $< -o $@
$(BUILD)/libllmc.a: $(call objects,$(HOST_SOURCES))
	@rm -f $@
	ar rcs $@ $^

# beside the program, the data that it trains on by default
$(OUT)train_gpt2: $(call objects,train_gpt2.cpp) $(BUILD)/libllmc.a $(if $(OUT),,| data/sample/val.json)
	@mkdir -p $(@D)
	$(LINK) $^ -o $@ $(DEPS_LDFLAGS) $(BLAS)
$(OUT)test_gpt2: $(call objects,test_gpt2.cpp $(TEST_SOURCES)) $(BUILD)/libllmc.a
	@mkdir -p $(@D)
	$(LINK) $^ -o $@ $(DEPS_LDFLAGS) $(BLAS)
$(OUT)data/make_corpus: $(call objects,$(wildcard data/make_corpus.cpp data/corpus_*.cpp)) $(BUILD)/libllmc.a
	@mkdir -p $(@D)
	$(LINK) $^ -o $@
$(OUT)data/make_shards: $(call objects,data/make_shards.cpp) $(BUILD)/libllmc.a
	@mkdir -p $(@D)
	$(LINK) $^ -o $@
$(BUILD)/dev/cpu/gpt2_step: $(call objects,dev/cpu/gpt2_step.cpp) $(BUILD)/libllmc.a
	$(LINK) $^ -o $@ $(DEPS_LDFLAGS) $(BLAS)

# ---- device code ------------------------------------------------------------------------------------------------------
# ARCH defaults to this machine's GPU; without one: Ampere, Hopper, and PTX that newer GPUs compile at start.
DETECTED := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u | tr -d . | \
                    sed 's/^90$$/90a/; s/^/sm_/')
ARCH     ?= $(if $(DETECTED),$(DETECTED),sm_80 sm_90a compute_80)
GENCODE  := $(foreach a,$(ARCH),-gencode arch=compute_$(patsubst sm_%,%,$(patsubst compute_%,%,$(a)))$(comma)code=$(a))
NVCCFLAGS := -std=c++20 -O3 -I. -lineinfo $(GENCODE) -MMD -MP -Xcompiler -fopenmp,-Wall,-march=$(MARCH)

$(SHOOTOUTS): %: %.cu
	$(if $(NVCC),,$(error no nvcc: install the CUDA Toolkit, or set NVCC=path))
	@mkdir -p $(BUILD)/$(@D)
	@echo "for $(ARCH)$(if $(DETECTED),, (no GPU here))"
	$(NVCC) $(NVCCFLAGS) -MF $(BUILD)/$@.d $< -o $@

spills: ; @NVCC="$(NVCC)" ARCH="$(ARCH)" dev/test/spills.sh $(wildcard dev/cuda/*.cu)

train_gpt2cu test_gpt2cu: data/sample/val.json
	@echo "$@: the GPU program is not written yet (README, 'What is not there yet'); make train runs on the CPU" >&2; exit 1

# ---- what users type --------------------------------------------------------------------------------------------------
data/sample/val.json: data/make_corpus
	data/make_corpus --out data/sample
data/sample: data/sample/val.json

WHERE := $(if $(DETECTED),The GPU trainer is not written yet: training on the CPU.,No GPU here: training on the CPU.)
train: train_gpt2
	@echo "$(WHERE)"
	./train_gpt2 --config scripts/train_sample.toml

test: ; @$(MAKE) --no-print-directory $(PROGRAMS) $(if $(NVCC),$(SHOOTOUTS)) && dev/test/run.sh

# make diff-layernorm_forward-1-2: the idea of rung 2
diff-%: ; @set -- $(subst -, ,$*); git --no-pager diff --no-index llmc/$$1/v$$2.cuh llmc/$$1/v$$3.cuh || true

clean: ; rm -rf build train_gpt2 test_gpt2 data/make_corpus data/make_shards $(SHOOTOUTS)

.PHONY: all train test spills clean data/sample train_gpt2cu test_gpt2cu
.DELETE_ON_ERROR:
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
