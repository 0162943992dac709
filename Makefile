# plumb: GPT-2 training, and the LayerNorm kernels under it. `make help` prints the lines that begin with #: here and in the
# files that this one includes, then those with #=. What is below dev/ is the evidence, without which all else builds and
# trains.
#: Targets:
#:   make                                   build what this machine can
#:   make train                             build, make the sample data, train
#:   make train_gpt2                        the trainer; train_gpt2cu: on a GPU
#:   make data/sample                       the sample corpus; data/make_corpus, make_shards, make_hellaswag: the tools of data/
#:   make format                            clang-format
#:   make clean                             remove what was built
#= Settings: CXX, MARCH=native (x86-64-v3 for what is carried elsewhere), ARCH="sm_90a sm_80", NVCC, DEPS=dir, SANITIZE=1,
#=           V=1: the commands are shown

.DEFAULT_GOAL := all
# a plain make uses every core
ifeq ($(filter -j% --jobserver%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(shell nproc)
endif
MARCH ?= native
BUILD := build
OUT   :=# prefix of the programs: "" or a folder with a slash
NVCC  ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))

HOST_SOURCES := $(wildcard llmc/host/*/*.cpp llmc/ops/*/*.cpp llmc/model/*.cpp llmc/model/*/*.cpp)
PROGRAMS     := $(OUT)train_gpt2 $(OUT)data/make_corpus $(OUT)data/make_shards $(OUT)data/make_hellaswag
GPU_PROGRAMS := $(OUT)train_gpt2cu $(BUILD)/libllmc_layernorm.so $(BUILD)/libllmc_attention.so

# ---- dependencies: found or fetched once, see scripts/setup.sh --------------------------------------------------------
build/deps.mk: scripts/setup.sh
	@CXX="$(CXX)" DEPS="$(DEPS)" scripts/setup.sh
ifneq ($(MAKECMDGOALS),clean)
-include build/deps.mk
endif

# ---- host code --------------------------------------------------------------------------------------------------------
comma     := ,
# gcc 12 sees overlaps and overflows in std::string that are not there (gcc bug 105651)
CXXFLAGS  := -std=c++20 -march=$(MARCH) -fno-math-errno -fopenmp -Wall -Wextra -Wno-restrict -Wno-stringop-overflow \
             -Wno-array-bounds
OPTIMIZE  := $(if $(SANITIZE),-Og -g1 -fno-omit-frame-pointer -fsanitize=address$(comma)undefined -fno-sanitize-recover=all,-O3)
# a line for each file; V=1 shows the commands
quiet      = $(if $(V),,@echo "$(1) $@";)
COMPILE    = $(call quiet,compile)$(CXX) $(CXXFLAGS) $(OPTIMIZE) -I. $(DEPS_CPPFLAGS) -MMD -MP
LINK       = $(call quiet,link)$(CXX) $(CXXFLAGS) $(OPTIMIZE)
HASH      := -Wl,--as-needed -l:libxxhash.a
BLAS      := $(HASH) -lopenblas

objects = $(patsubst %.cpp,$(BUILD)/%.o,$(1))

# Writes settings to the target if it holds other ones: what was compiled with those is then older, and compiled again.
define keep
@mkdir -p $(@D)
@printf '%s\n' $(1) | cmp -s - $@ || printf '%s\n' $(1) > $@
endef
SETTINGS := build/deps.mk $(BUILD)/compiler
$(BUILD)/compiler: FORCE
	$(call keep,'$(CXX)' '$(MARCH)')
FORCE:

# The headers of others that most files read, compiled once for each way to optimise, take a fifth off a file's time. With
# these CXXFLAGS, not with those of the first object that wants them: g++ uses them where all flags are the same, else says
# nothing and reads the text. None of our own headers: what includes them would not be known to depend on them.
PLAIN       := -Og
PRECOMPILED  = $(BUILD)/$(if $(filter-out $(PLAIN),$(OPTIMIZE)),std,plain).h
HEADERS     := $(BUILD)/std.h.gch $(if $(filter-out $(BUILD),$(PLAIN_BUILD)),,$(BUILD)/plain.h.gch)
$(BUILD)/std.h.gch: OPTIMIZE := $(OPTIMIZE)
$(BUILD)/plain.h.gch: OPTIMIZE := $(PLAIN)
$(HEADERS): CXXFLAGS := $(CXXFLAGS)
STANDARD := algorithm array atomic chrono cmath cstdint cstdio cstring filesystem fstream functional map memory optional \
    random set span sstream string thread vector fmt/core.h
$(HEADERS): $(SETTINGS) Makefile
	@mkdir -p $(@D)
	@printf '#include <%s>\n' $(STANDARD) > $(basename $@)
	$(COMPILE) -x c++-header $(basename $@) -o $@
$(BUILD)/%.o: %.cpp $(SETTINGS) | $(if $(filter file,$(origin PRECOMPILED)),$(HEADERS))
	@mkdir -p $(@D)
	$(COMPILE) -include $(PRECOMPILED) -c $< -o $@
# a few lines a step or a run go through these, but whole texts through json.cpp, all numbers of a model through safetensors.cpp
$(call objects,$(filter-out %/json.cpp %/safetensors.cpp,$(shell grep -l '<nlohmann/json.hpp>' llmc/*/*/*.cpp)) \
    $(wildcard llmc/model/model_source.cpp $(addsuffix /*.cpp,$(addprefix llmc/,model/run model/profile host/options))) \
    $(filter-out %/comm.cpp,$(wildcard llmc/host/ranks/*.cpp))): OPTIMIZE := $(OPTIMIZE:-O3=-Og)
define archive
@mkdir -p $(@D)
@rm -f $@
$(call quiet,archive)ar qcs $@ $^
endef
FORMAT := $(BUILD)/llmc/host/base/format.o
$(FORMAT): CXXFLAGS += -fPIC
$(BUILD)/libllmc.a: $(call objects,$(HOST_SOURCES))
	$(archive)

# beside the program, the data that it trains on by default
$(OUT)train_gpt2: $(call objects,train_gpt2.cpp) $(BUILD)/libllmc.a $(if $(OUT),,| data/sample/val.json)
	@mkdir -p $(@D)
	$(LINK) $^ -o $@ $(DEPS_LDFLAGS) $(BLAS)
$(OUT)data/make_corpus: $(call objects,$(wildcard data/make_corpus.cpp data/corpus_*.cpp)) $(BUILD)/libllmc.a
	@mkdir -p $(@D)
	$(LINK) $^ -o $@ $(DEPS_LDFLAGS) $(HASH)
$(OUT)data/make_shards $(OUT)data/make_hellaswag: $(OUT)data/%: $(BUILD)/data/%.o $(BUILD)/libllmc.a
	@mkdir -p $(@D)
	$(LINK) $^ -o $@ $(DEPS_LDFLAGS) $(HASH)

include scripts/gpu.mk scripts/libraries.mk
-include dev/cuda/shootouts.mk dev/emulate/emulate.mk dev/test/test.mk

# ---- what users type --------------------------------------------------------------------------------------------------
all: $(PROGRAMS) $(if $(NVCC),$(GPU_PROGRAMS))
	@echo
	@echo "Built. Next:   make train   trains a small GPT-2 on the sample stories"
	@echo "               $(if $(wildcard dev/test),make test    checks everything,make help    lists what can be built)"
data/sample/val.json: data/make_corpus
	data/make_corpus --out data/sample
data/sample: data/sample/val.json

# the larger job where there is a GPU, and nvcc to build for it
ifneq ($(and $(DETECTED),$(NVCC)),)
train: train_gpt2cu
	@echo "A GPU ($(DETECTED)) and nvcc are here: training on the GPU."
	./train_gpt2cu --config scripts/train_sample_gpu.toml
else
train: train_gpt2
	@echo "$(if $(DETECTED),A GPU ($(DETECTED)) is here$(comma) but no nvcc to build for it,No GPU here): training on the CPU."
	./train_gpt2 --config scripts/train_sample.toml
endif

format:
	clang-format -i $(shell git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')
clean:
	rm -rf build $(PROGRAMS) $(filter-out $(BUILD)/%,$(GPU_PROGRAMS)) $(LAB_PROGRAMS)
help:
	@sed -n 's/^#: //p' $(filter Makefile %.mk,$(MAKEFILE_LIST))
	@sed -n 's/^#= //p' Makefile

.PHONY: all train format clean help data/sample FORCE
.DELETE_ON_ERROR:
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
