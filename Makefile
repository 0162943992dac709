# plumb: GPT-2 training, and the LayerNorm kernels under it.
#   make            build what this machine can      make train   build, make the sample data, train
#   make test       every check                       make dev/cuda/layernorm_forward   a kernel shootout; ONLY=v2: of a rung
#   make spills     register spills of the kernels    make diff-layernorm_forward-1-2   what rung 2 changed
#   make quick      unit tests of what changed        make format, make lint            clang-format, clang-tidy
#   make install PREFIX=/usr/local                    the C libraries, their headers, files for pkg-config
#   make faults     kills, errors and power losses at every point of a run, damage, signals: dev/test/durability; then
#                   all planted faults: dev/test/planted.sh
# Settings: CXX, MARCH=native (x86-64-v3 for what is carried elsewhere), ARCH="sm_90a sm_80", NVCC, DEPS=dir, SANITIZE=1,
#           V=1: the commands are shown

# a plain make uses every core
ifeq ($(filter -j% --jobserver%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(shell nproc)
endif
MARCH ?= native
BUILD := build
OUT   :=# prefix of the programs: "" or a folder with a slash
NVCC  ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))

HOST_SOURCES := $(wildcard llmc/host/*/*.cpp llmc/ops/*/*.cpp llmc/model/*.cpp llmc/model/*/*.cpp)
TEST_SHARED  := $(addprefix dev/test/cpu/,test_files.cpp train_program.cpp)
TEST_SOURCES := $(filter-out $(TEST_SHARED),$(wildcard dev/test/cpu/*.cpp))
SHOOTOUTS    := $(patsubst %.cu,%,$(wildcard dev/cuda/*.cu))
PROGRAMS     := $(OUT)train_gpt2 $(OUT)test_gpt2 $(OUT)data/make_corpus $(OUT)data/make_shards $(OUT)data/make_hellaswag
# LayerNorm's kernels have an object for each type of rows, of sources that dev/layernorm_source.sh writes
LAYERNORM_TYPED := $(foreach k,$(addprefix forward/,short_rows row_in_registers unaligned_rows fallback) \
    $(addprefix backward/,short_rows team_ring unaligned_rows fallback),$(foreach t,fp32 bf16 fp16,llmc/layernorm/$k.$t.cu)) \
    llmc/layernorm/forward/fallback.fp64.cu llmc/layernorm/backward/fallback.fp64.cu
LAYERNORM_SOURCES := $(wildcard llmc/layernorm/*.cu llmc/layernorm/*ward/*.cu) $(LAYERNORM_TYPED)
GPU_SOURCES  := $(wildcard llmc/model/*/*.cu llmc/ops/*.cu llmc/ops/*/*.cu) $(LAYERNORM_SOURCES)
GPU_PROGRAMS := $(OUT)train_gpt2cu $(OUT)test_gpt2cu $(BUILD)/libllmc_layernorm.so $(BUILD)/libllmc_attention.so

all: $(PROGRAMS) $(if $(NVCC),$(GPU_PROGRAMS) $(SHOOTOUTS))
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

# the standard headers that most files read, compiled once for each way to optimise, take a fifth off a file's time
PLAIN       := $(if $(SANITIZE),$(subst $(comma)undefined,,$(OPTIMIZE)) --param asan-instrumentation-with-call-threshold=0,-Og)
PRECOMPILED  = $(BUILD)/$(if $(filter-out $(PLAIN),$(OPTIMIZE)),std,plain).h
HEADERS     := $(BUILD)/std.h.gch $(BUILD)/plain.h.gch
$(BUILD)/std.h.gch: OPTIMIZE := $(OPTIMIZE)
$(BUILD)/plain.h.gch: OPTIMIZE := $(PLAIN)
$(HEADERS): $(SETTINGS)
	@mkdir -p $(@D)
	@printf '#include <%s>\n' algorithm chrono cmath cstdint cstdio cstring filesystem fstream functional map memory \
	    optional set span sstream string thread vector > $(basename $@)
	$(COMPILE) -x c++-header $(basename $@) -o $@
$(BUILD)/%.o: %.cpp $(SETTINGS) | $(if $(filter file,$(origin PRECOMPILED)),$(HEADERS))
	@mkdir -p $(@D)
	$(COMPILE) -include $(PRECOMPILED) -c $< -o $@
$(BUILD)/llmc/host/options/options_config.o: CXXFLAGS += -Wno-terminate
# what CLI11 and the JSON and TOML libraries make of their templates reads and writes a few lines; json.cpp whole texts,
# safetensors.cpp all numbers of a model
$(call objects,$(filter-out %/json.cpp %/safetensors.cpp,$(shell grep -l -e '<CLI/' -e '<nlohmann/json.hpp>' -e '<toml++/' llmc/*/*/*.cpp))): \
    OPTIMIZE := $(OPTIMIZE:-O3=-Og)
# Tests without the references' templates: -Og takes less than half the time to compile, and what the tests do themselves
# needs no check for undefined behaviour, and checks of addresses by calls. The others must all compile those templates as the
# library does.
PLAIN_TESTS := $(call objects,test_gpt2.cpp $(wildcard dev/test/durability/*.cpp) \
    $(shell grep -L -e 'dev/test/cpu/reference_model.h' -e 'llmc/model/cpu/reference.h' $(TEST_SOURCES) $(TEST_SHARED)))
$(PLAIN_TESTS): OPTIMIZE := $(PLAIN)
$(BUILD)/libllmc.a: $(call objects,$(HOST_SOURCES))
FORMAT := $(BUILD)/llmc/host/base/format.o
$(FORMAT): CXXFLAGS += -fPIC
$(BUILD)/dev/test/shared.a: $(call objects,$(TEST_SHARED))
$(BUILD)/libllmc.a $(BUILD)/dev/test/shared.a:
	@rm -f $@
	$(call quiet,archive)ar qcs $@ $^

# beside the program, the data that it trains on by default
$(OUT)train_gpt2: $(call objects,train_gpt2.cpp) $(BUILD)/libllmc.a $(if $(OUT),,| data/sample/val.json)
	@mkdir -p $(@D)
	$(LINK) $^ -o $@ $(DEPS_LDFLAGS) $(BLAS)
# the library's objects come first: what the tests instantiate, too, is taken from them, as it ships
$(OUT)test_gpt2: $(call objects,$(HOST_SOURCES) test_gpt2.cpp $(TEST_SOURCES)) $(BUILD)/dev/test/shared.a
	@mkdir -p $(@D)
	$(LINK) $^ -o $@ $(DEPS_LDFLAGS) $(BLAS)
# see dev/test/durability/main.cpp
$(OUT)test_durable: $(call objects,$(wildcard dev/test/durability/*.cpp) dev/test/fuzz/readers.cpp) $(BUILD)/dev/test/shared.a \
                     $(BUILD)/libllmc.a
	@mkdir -p $(@D)
	$(LINK) $^ -o $@ $(DEPS_LDFLAGS) $(BLAS)
$(OUT)data/make_corpus: $(call objects,$(wildcard data/make_corpus.cpp data/corpus_*.cpp)) $(BUILD)/libllmc.a
	@mkdir -p $(@D)
	$(LINK) $^ -o $@ $(DEPS_LDFLAGS) $(HASH)
$(OUT)data/make_shards $(OUT)data/make_hellaswag: $(OUT)data/%: $(BUILD)/data/%.o $(BUILD)/libllmc.a
	@mkdir -p $(@D)
	$(LINK) $^ -o $@ $(DEPS_LDFLAGS) $(HASH)
$(BUILD)/dev/cpu/gpt2_step: $(call objects,dev/cpu/gpt2_step.cpp) $(BUILD)/libllmc.a
	$(LINK) $^ -o $@ $(DEPS_LDFLAGS) $(BLAS)

# the readers under libFuzzer: dev/test/fuzz/run.sh
FUZZ_OBJECTS := $(patsubst %.cpp,$(BUILD)/fuzz/%.o,$(wildcard dev/test/fuzz/*.cpp) \
    $(patsubst %,llmc/host/%.cpp,base/text files/file_io files/json files/safetensors \
    $(addprefix tokens/,bpe data_files dataloader tokenizer) ranks/ranks \
    $(addprefix options/,options options_config options_input parse_words typed_text) log/run_log) \
    $(patsubst %,llmc/model/%.cpp,model_source $(addprefix formats/,checkpoint hf_model record) \
    run/folder run/open_model))
$(BUILD)/fuzz/%.o: %.cpp $(SETTINGS)
	@mkdir -p $(@D)
	$(call quiet,compile)clang++ -std=c++20 -O2 -g1 -fsanitize=fuzzer-no-link,address,undefined \
	    -fno-sanitize-recover=all -isystem dev/lint -I. $(DEPS_CPPFLAGS) -MMD -MP -c $< -o $@
$(BUILD)/fuzz/fuzz: $(FUZZ_OBJECTS)
	$(call quiet,link)clang++ -fsanitize=fuzzer,address,undefined $^ -o $@ $(DEPS_LDFLAGS) $(HASH)

# ---- device code ------------------------------------------------------------------------------------------------------
# ARCH defaults to this machine's GPU; without one: Ampere, Hopper, and PTX that newer GPUs compile at start.
DETECTED := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u | tr -d . | \
                    sed 's/^90$$/90a/; s/^/sm_/')
ARCH     ?= $(if $(DETECTED),$(DETECTED),sm_80 sm_90a compute_80)
# 90a means sm_90a; so does sm_90, whose code would lack wgmma
GPUS     := $(patsubst sm_90,sm_90a,$(foreach a,$(ARCH),$(if $(filter sm_% compute_%,$(a)),$(a),sm_$(a))))
GENCODE  := $(foreach a,$(GPUS),-gencode arch=compute_$(patsubst sm_%,%,$(patsubst compute_%,%,$(a)))$(comma)code=$(a))
# -compress-all: kernels take a fifth of the space
# {fmt} knows too little of nvcc: its checks of formats are made where the host's compiler reads the same headers
FORMAT_FLAGS := -DFMT_CONSTEVAL= -DFMT_USE_CONSTEXPR=1
NVCCFLAGS := -std=c++20 -O3 -I. $(FORMAT_FLAGS) $(DEPS_CPPFLAGS) -lineinfo --expt-relaxed-constexpr -Xfatbin -compress-all $(GENCODE) -MMD -MP \
             -Xcompiler -fopenmp,-Wall,-march=$(MARCH)
CUDA      := $(if $(NVCC),$(patsubst %/bin/nvcc,%,$(realpath $(NVCC))))
# what the emulator and the tests of the GPU code include; without a toolkit, NVIDIA's headers from PyPI (dev/emulate/README.md)
CUDA_HEADERS := $(patsubst %/cuda_bf16.h,%,$(firstword $(wildcard \
    $(CUDA)/include/cuda_bf16.h build/cuda/nvidia/cu13/include/cuda_bf16.h)))
CUDA_LIBS := $(wildcard $(CUDA)/lib64 $(CUDA)/lib $(CUDA)/targets/x86_64-linux/lib)
GPU_LIBS  := $(foreach d,$(CUDA_LIBS),-L$(d) -Wl$(comma)-rpath$(comma)$(d)) -lcublasLt -lcudart_static -ldl -lrt -lpthread \
             -Wl,--as-needed -l:libxxhash.a
for_whom   = @echo "for $(GPUS)$(if $(DETECTED),, (no GPU here))"
has_nvcc   = $(if $(NVCC),,$(error no nvcc: install the CUDA Toolkit, or set NVCC=path))
gpu_objects = $(patsubst %.cu,$(BUILD)/%.cu.o,$(1))

# for which GPUs what is there was compiled: if for others, it is compiled again
$(BUILD)/arch: FORCE
	$(call keep,'$(GPUS)' '$(GENCODE)')

define compile_cu
$(has_nvcc)
@mkdir -p $(@D)
$(call quiet,compile)$(NVCC) $(NVCCFLAGS) -MF $(@:.o=.d) -c $< -o $@
endef
$(BUILD)/%.cu.o: %.cu $(SETTINGS) $(BUILD)/arch
	$(compile_cu)
$(BUILD)/%.cu.o: $(BUILD)/typed/%.cu $(SETTINGS) $(BUILD)/arch
	$(compile_cu)
# no device code is in these: for the host's compiler, as nvcc reads a file three times
HOST_CU := train_gpt2.cu test_gpt2.cu $(patsubst %,llmc/%.cu,layernorm/c_abi model/profile/activity model/gpu/decoder \
    ops/attention/bf16 ops/attention/c_abi ops/comm/device_comm ops/comm/host ops/comm/overlap \
    ops/muon/newton_schulz)
define compile_host_cu
@mkdir -p $(@D)
$(COMPILE) -fPIC -isystem $(CUDA_HEADERS) -include cuda_runtime.h -x c++ -c $< -o $@
endef
$(call gpu_objects,$(HOST_CU)): compile_cu = $(compile_host_cu)
$(foreach d,typed emulated,$(addprefix $(BUILD)/$d/,$(LAYERNORM_TYPED))): dev/layernorm_source.sh
	@mkdir -p $(@D)
	@dev/layernorm_source.sh $@ > $@
# tests of the GPU code are host code, but for kernels of their own: they need CUDA's headers, not its compiler
$(BUILD)/dev/test/gpu/%.o: CXXFLAGS += -isystem $(CUDA_HEADERS)
# without a GPU the emulator alone runs a part of them, on a few rows
$(if $(DETECTED),,$(BUILD)/dev/test/gpu/%.o: OPTIMIZE := $(OPTIMIZE:-O3=-Og))

$(OUT)train_gpt2cu: $(call gpu_objects,train_gpt2.cu $(GPU_SOURCES)) $(BUILD)/libllmc.a $(if $(OUT),,| data/sample/val.json)
	@mkdir -p $(@D)
	$(LINK) $^ -o $@ $(DEPS_LDFLAGS) $(GPU_LIBS)
$(OUT)test_gpt2cu: $(call gpu_objects,test_gpt2.cu $(wildcard dev/test/gpu/*.cu) $(GPU_SOURCES)) \
                   $(call objects,$(wildcard dev/test/gpu/*.cpp)) $(BUILD)/dev/test/shared.a $(BUILD)/libllmc.a
	@mkdir -p $(@D)
	$(LINK) $^ -o $@ $(DEPS_LDFLAGS) $(GPU_LIBS)

# ONLY=v2, or 2: of LayerNorm's ladders that rung alone, without the kernels that train (dev/cuda/only.h)
ifdef ONLY
override ONLY := $(if $(wildcard llmc/layernorm/ladder/*/v$(ONLY).*),v)$(ONLY)
$(if $(filter ship,$(ONLY))$(wildcard llmc/layernorm/ladder/*/$(subst -,_,$(ONLY)).*),,\
    $(error ONLY=$(ONLY): no such rung in llmc/layernorm/ladder/))
ALONE := $(filter %layernorm_forward %layernorm_backward,$(SHOOTOUTS))
ALONE_BUILD := $(BUILD)/only/$(ONLY)
$(ALONE_BUILD)/dev/cuda/only.h: dev/cuda/only.h
	@mkdir -p $(@D)
	sed 's/kOnly = ""/kOnly = "$(ONLY)"/' $< > $@
$(ALONE_BUILD)/%.cu.o: %.cu $(SETTINGS) $(BUILD)/arch $(ALONE_BUILD)/dev/cuda/only.h
	$(compile_cu)
$(ALONE_BUILD)/%.cu.o: NVCCFLAGS := -I$(ALONE_BUILD) $(NVCCFLAGS) --default-stream per-thread
$(ALONE): %: $(ALONE_BUILD)/%.cu.o
endif
# of which rungs the programs are that were linked last
$(BUILD)/only/linked: FORCE
	$(call keep,'$(ONLY)')

# a ladder ends with the function that trains, which is compiled once
WHOLE := $(if $(filter-out ship,$(ONLY)),,$(SHOOTOUTS))
$(filter %layernorm_forward,$(WHOLE)): $(call gpu_objects,$(filter llmc/layernorm/forward/%,$(LAYERNORM_SOURCES)))
$(filter %layernorm_backward,$(WHOLE)): $(call gpu_objects,$(filter llmc/layernorm/backward/%,$(LAYERNORM_SOURCES)))
# a rung of attention's is a file; the roof is the rate of a product
$(filter %attention_forward,$(SHOOTOUTS)): $(call gpu_objects,$(wildcard llmc/ops/attention/ladder/forward/*.cu))
$(filter %attention_backward,$(SHOOTOUTS)): $(call gpu_objects,$(wildcard llmc/ops/attention/ladder/backward/*.cu))
ATTENTION_SHOOTOUTS := $(filter dev/cuda/attention_%,$(SHOOTOUTS))
$(ATTENTION_SHOOTOUTS): $(call gpu_objects,$(addprefix llmc/ops/,matmul/matmul.cu column_sums/matmul_bias.cu gelu.cu) \
    $(filter-out %c_abi.cu %/backward_bias.cu,$(wildcard llmc/ops/attention/*.cu)))
$(ATTENTION_SHOOTOUTS): SHOOTOUT_LIBS := -lcublasLt $(foreach d,$(CUDA_LIBS),-Xlinker -rpath -Xlinker $(d))
$(filter %/classifier,$(SHOOTOUTS)): $(call gpu_objects,$(wildcard llmc/ops/classifier/*.cu))
$(filter %/column_sums,$(SHOOTOUTS)): $(call gpu_objects,llmc/ops/column_sums/matmul_bias.cu)
# see dev/cuda/clock.cuh's Stream; without a GPU nothing runs their host code
$(call gpu_objects,$(addsuffix .cu,$(SHOOTOUTS))): \
    NVCCFLAGS := $(if $(DETECTED),$(NVCCFLAGS),$(NVCCFLAGS:-O3=-O0)) --default-stream per-thread
$(filter-out $(ALONE),$(SHOOTOUTS)): %: $(BUILD)/%.cu.o
$(SHOOTOUTS): $(BUILD)/only/linked
	$(has_nvcc)
	$(for_whom)
	$(call quiet,link)$(NVCC) $(GENCODE) -Xcompiler -fopenmp $(filter %.o,$^) -o $@ $(SHOOTOUT_LIBS)

# LayerNorm and attention for other programs: C interfaces, and no other symbol. SOVERSION is raised when programs that were
# linked before would break; without it in the name they would be started with a library that they do not fit.
SOVERSION := 1
define link_library
$(for_whom)
$(call quiet,link)$(CXX) -shared -Wl,-soname,$(@F).$(SOVERSION) -Wl,--version-script=$(filter %.map,$^) -Wl,--no-undefined \
    -static-libstdc++ -static-libgcc $(filter %.o,$^) -o $@ \
    $(foreach d,$(CUDA_LIBS),-L$(d)) -lcudart_static -ldl -lrt -lpthread
@ln -sf $(@F) $@.$(SOVERSION)
endef
LAYERNORM_OBJECTS := $(call gpu_objects,$(LAYERNORM_SOURCES))
ATTENTION_OBJECTS := $(call gpu_objects,$(filter-out %/backward_bias.cu,$(wildcard llmc/ops/attention/*.cu)))
# nvcc's -O is for host code, of which these have a launch: the device code is the same
$(call gpu_objects,$(LAYERNORM_TYPED)): NVCCFLAGS := $(NVCCFLAGS:-O3=-O1)
$(LAYERNORM_OBJECTS) $(ATTENTION_OBJECTS): NVCCFLAGS += -Xcompiler -fPIC
$(BUILD)/libllmc_layernorm.so: $(LAYERNORM_OBJECTS) $(FORMAT) llmc/layernorm/c_abi.map Makefile
	$(link_library)
$(BUILD)/libllmc_attention.so: $(ATTENTION_OBJECTS) $(FORMAT) llmc/ops/attention/c_abi.map Makefile
	$(link_library)

# make install PREFIX=/usr/local [DESTDIR=package]: libraries, headers, files for pkg-config
PREFIX ?= /usr/local
AT      = $(DESTDIR)$(abspath $(PREFIX))
install-layernorm: INTERFACE := llmc/layernorm/c_abi.h
install-attention: INTERFACE := llmc/ops/attention/c_abi.h
INSTALLS := install-layernorm install-attention
install: $(INSTALLS)
$(INSTALLS): install-%: $(BUILD)/libllmc_%.so
	install -Dm644 $(INTERFACE) $(AT)/include/$(INTERFACE)
	install -Dm755 $< $(AT)/lib/$(<F).$(SOVERSION)
	ln -sf $(<F).$(SOVERSION) $(AT)/lib/$(<F)
	mkdir -p $(AT)/lib/pkgconfig
	printf '%s\n' 'prefix=$(abspath $(PREFIX))' 'Name: llmc_$*' 'Description: plumb, CUDA kernels of $*: $(INTERFACE)' \
	    "Version: $(SOVERSION).$$(sed -n 's/.*_ABI_VERSION = \([0-9]*\).*/\1/p' $(INTERFACE))" \
	    'Cflags: -I$${prefix}/include' 'Libs: -L$${prefix}/lib -lllmc_$*' >$(AT)/lib/pkgconfig/llmc_$*.pc

# ---- LayerNorm's kernels on the CPU: dev/emulate/machine.h ------------------------------------------------------------
# as they are compiled for Hopper; 800: for Ampere
EMULATED_ARCH ?= 900
EMULATED  := $(BUILD)/emulated
REWRITTEN := $(patsubst %,$(EMULATED)/%,$(wildcard llmc/*/*.cuh llmc/*/*/*.cuh \
    llmc/layernorm/ladder/*/*.cuh llmc/ops/*/ladder/*.cuh llmc/ops/*/ladder/*/*.cuh dev/cuda/*.cuh))
# -Og: a third of the time to compile, and they run as fast. Vectors that are not aligned are errors, as on a GPU
EMULATE    = $(call quiet,compile)$(CXX) $(CXXFLAGS) -Og -D__CUDA_ARCH__=$(EMULATED_ARCH) -fsanitize=alignment \
             -fno-sanitize-recover=alignment -Wno-attributes -Wno-unknown-pragmas -Wno-unused -Wno-sign-compare \
             -Wno-narrowing -Wno-missing-field-initializers -Wno-maybe-uninitialized -Idev/emulate/include \
             -I$(EMULATED) -I. $(DEPS_CPPFLAGS) -isystem $(CUDA_HEADERS) -MMD -MP -x c++
.SECONDARY: $(REWRITTEN)
$(EMULATED)/%: % dev/emulate/rewrite.pl
	@mkdir -p $(@D)
	@[ ! -e $< ] || perl dev/emulate/rewrite.pl $< > $@  # a header that is gone, which what was built before names
$(EMULATED)/%.cu.o: $(EMULATED)/%.cu $(SETTINGS) | $(REWRITTEN)
	$(if $(CUDA_HEADERS),,$(error no CUDA headers: dev/emulate/README.md says how to get them without a toolkit))
	$(EMULATE) -c $< -o $@
# -U: a checked longjmp refuses to go to another stack
$(BUILD)/dev/emulate/%.o: CXXFLAGS += -isystem $(CUDA_HEADERS) -Idev/emulate/include -U_FORTIFY_SOURCE
# the machine, and the kernels that ship
EMULATED_MACHINE := $(call objects,$(addprefix dev/emulate/,machine.cpp instructions.cpp runtime.cpp)) $(BUILD)/libllmc.a
EMULATED_OBJECTS := $(EMULATED_MACHINE) \
    $(patsubst %,$(EMULATED)/%.o,$(filter-out llmc/layernorm/c_abi.cu,$(LAYERNORM_SOURCES)))
# other layers' kernels without tensor cores
EMULATED_OPS := $(patsubst %,$(EMULATED)/llmc/ops/%.cu.o,classifier/classifier classifier/rows column_sums/matmul_bias \
    attention/fp32 adamw muon/muon global_norm group_sum comm/host \
    $(foreach v,v1 v2,attention/ladder/forward/$(v) attention/ladder/backward/$(v))) \
    $(patsubst %,$(EMULATED)/%.o,$(wildcard llmc/ops/decode/*.cu))
# -rdynamic: kernels have names
LINK_EMULATED = $(LINK) -rdynamic -fsanitize=alignment $(filter %.o %.a,$^) -o $@ -Wl,--as-needed -l:libxxhash.a
$(OUT)test_emulated: $(call objects,$(addprefix dev/emulate/,main.cpp test_layernorm.cpp test_layernorm_choices.cpp \
                         test_attention.cpp)) \
                     $(addprefix $(EMULATED)/dev/emulate/test_,machine.cu.o many_ranks.cu.o) \
                     $(call objects,$(wildcard dev/test/gpu/test_layernorm*.cpp) $(addprefix dev/test/gpu/test_, \
                         decode.cpp classifier.cpp matmul_bias.cpp adamw.cpp muon.cpp group_sum.cpp)) $(BUILD)/dev/test/shared.a \
                     $(EMULATED_OPS) $(EMULATED_OBJECTS)
	@mkdir -p $(@D)
	$(LINK_EMULATED)
# make build/emulated/dev/cuda/layernorm_forward: a ladder, for --check; with ONLY=v2 that rung
EMULATED_LADDERS := $(addprefix $(EMULATED)/,$(filter-out $(ATTENTION_SHOOTOUTS),$(SHOOTOUTS)))
$(addprefix $(EMULATED)/,$(ATTENTION_SHOOTOUTS)):
	$(error $@: tensor cores are not emulated; v1 and v2 are: ./test_emulated --test-case="attention*")
ifdef ONLY
$(ALONE_BUILD)/emulated/%.cu.o: $(EMULATED)/%.cu $(SETTINGS) $(ALONE_BUILD)/dev/cuda/only.h | $(REWRITTEN)
	@mkdir -p $(@D)
	$(EMULATE) -c $< -o $@
$(ALONE_BUILD)/emulated/%.cu.o: CXXFLAGS += -I$(ALONE_BUILD)
$(addprefix $(EMULATED)/,$(ALONE)): $(EMULATED)/%: $(ALONE_BUILD)/emulated/%.cu.o \
                                    $(if $(WHOLE),$(EMULATED_OBJECTS),$(EMULATED_MACHINE))
endif
$(filter-out $(addprefix $(EMULATED)/,$(ALONE)),$(EMULATED_LADDERS)): %: %.cu.o $(EMULATED_OPS) $(EMULATED_OBJECTS)
$(EMULATED_LADDERS): $(BUILD)/only/linked
	$(LINK_EMULATED)

spills: $(addprefix $(BUILD)/typed/,$(LAYERNORM_TYPED))
	@NVCC="$(NVCC)" ARCH="$(GPUS)" FLAGS="$(FORMAT_FLAGS) $(DEPS_CPPFLAGS)" dev/test/spills.sh $(wildcard dev/cuda/*.cu llmc/ops/attention/ladder/*/*.cu) \
	    $(filter-out $(LAYERNORM_TYPED),$(GPU_SOURCES)) $^

# ---- what users type --------------------------------------------------------------------------------------------------
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

# without a GPU nothing runs the device code: for what it was compiled for; for one GPU it takes a third of the time
COMPILED  := $(shell sed 1q $(BUILD)/arch 2>/dev/null)
TEST_ARCH := $(if $(DETECTED)$(filter command environment,$(origin ARCH)),$(ARCH),$(or $(COMPILED),sm_90a))
test:
	@$(MAKE) --no-print-directory ARCH="$(TEST_ARCH)" $(PROGRAMS) $(OUT)test_durable \
	    $(if $(NVCC),$(GPU_PROGRAMS) $(SHOOTOUTS) $(OUT)test_emulated)
	@dev/test/run.sh

# all of what `make test` tries a part of, and ranks killed and stopped 50 times
faults: $(PROGRAMS) test_durable
	./test_durable --all
	PLUMB_FAULTS=50 ./test_gpt2 --test-case="many ranks and faults*"
	dev/test/planted.sh

# make diff-layernorm_forward-1-2: the idea of rung 2
diff-%:
	@set -- $(subst -, ,$*); op=$${1#layernorm_}; ladder=llmc/layernorm/ladder/$${op%_layernorm_forward}; \
	    case $$1 in attention_*) ladder=llmc/ops/attention/ladder/$${1#attention_};; \
        classifier | column_sums) ladder=llmc/ops/$$1/ladder;; esac; \
	    for rung in $$2 $$3; do ls $$ladder/v$$rung.* >/dev/null 2>&1 || \
	        { echo "make $@: no file of rung $$rung there:" $$ladder/v* >&2; exit 1; }; done; \
	    git --no-pager diff --no-index $$ladder/v$$2.* $$ladder/v$$3.* || true

# the inner loop: CONTRIBUTING.md
quick: $(PROGRAMS)
	@dev/test/quick.sh
format:
	clang-format -i $(shell git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')
lint: build/deps.mk
	printf '%s\n' $(HOST_SOURCES) $(wildcard data/*.cpp) train_gpt2.cpp | xargs -P $(shell nproc) -I{} \
	    clang-tidy --quiet {} -- -std=c++20 -fopenmp -isystem dev/lint -I. $(DEPS_CPPFLAGS)

clean:
	rm -rf build train_gpt2 test_gpt2 test_durable train_gpt2cu test_gpt2cu test_emulated $(SHOOTOUTS) \
	    $(addprefix data/make_,corpus shards hellaswag)

.PHONY: all train test faults quick format lint spills clean install $(INSTALLS) data/sample FORCE
.DELETE_ON_ERROR:
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
