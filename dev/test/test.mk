# The checks: unit tests with and without a GPU, the fault suite, planted faults, lint.
#:   make test                              every check; the last line is N passed, N failed, N skipped. Without a GPU a
#:                                          twentieth of the faults, half of the files under sanitizers (WHOLE=1: all)
#:   make quick                             unit tests that changed, or that include a header that changed
#:   make faults                            all of what make test tries a part of: kills, errors, power losses, damage
#:                                          (doc/reliability.md); a build without dev/; then all planted faults, each
#:                                          with a build of its own
#:   make spills                            registers spilled by the kernels: must be 0
#:   make lint                              clang-tidy over the host code, with the checks of .clang-tidy
TEST_SHARED  := $(addprefix dev/test/support/,test_files.cpp train_program.cpp reference_model.cpp)
TEST_SOURCES := $(wildcard dev/test/host/*.cpp dev/test/ops/*.cpp dev/test/model/*.cpp)
PROGRAMS     += $(OUT)test_gpt2
GPU_PROGRAMS += $(OUT)test_gpt2cu
LAB_PROGRAMS := test_durable test_emulated

# Tests without the references' templates: -Og takes less than half the time to compile. The others must all compile those
# templates as the library does. PLAIN_BUILD: where they are taken from. Under sanitizers they are those that `make test` has
# compiled: what the library does is looked at, and what it does to memory that tests allocate, not what they do themselves.
PLAIN_BUILD ?= $(BUILD)
PLAIN_TESTS := dev/test/support/main.cpp dev/test/fuzz/readers.cpp $(wildcard dev/test/durability/*.cpp) \
    $(shell grep -L 'llmc/model/cpu/reference.h' $(TEST_SOURCES) $(TEST_SHARED))
plain_objects = $(patsubst %.cpp,$(PLAIN_BUILD)/%.o,$(1))
test_objects  = $(call plain_objects,$(filter $(PLAIN_TESTS),$(1))) $(call objects,$(filter-out $(PLAIN_TESTS),$(1)))
$(call plain_objects,$(PLAIN_TESTS)): OPTIMIZE := $(PLAIN)
$(BUILD)/dev/test/shared.a: $(call test_objects,$(TEST_SHARED))
	$(archive)
# the library's objects come first: what the tests instantiate, too, is taken from them, as it ships
$(OUT)test_gpt2: $(call objects,$(HOST_SOURCES)) $(call test_objects,dev/test/support/main.cpp $(TEST_SOURCES)) \
                 $(BUILD)/dev/test/shared.a
	@mkdir -p $(@D)
	$(LINK) $^ -o $@ $(DEPS_LDFLAGS) $(BLAS)
# see dev/test/durability/main.cpp
$(OUT)test_durable: $(call objects,$(wildcard dev/test/durability/*.cpp) dev/test/fuzz/readers.cpp) $(BUILD)/dev/test/shared.a \
                     $(BUILD)/libllmc.a
	@mkdir -p $(@D)
	$(LINK) $^ -o $@ $(DEPS_LDFLAGS) $(BLAS)

# The readers under libFuzzer: dev/test/fuzz/run.sh. _OPENMP: what --version names; the fuzzers are built without OpenMP.
FUZZ_OBJECTS := $(patsubst %.cpp,$(BUILD)/fuzz/%.o,$(wildcard dev/test/fuzz/*.cpp llmc/model/formats/*.cpp \
    $(addprefix llmc/host/,base/format.cpp base/text.cpp files/*.cpp tokens/*.cpp options/*.cpp log/*.cpp) \
    $(addprefix llmc/,host/ranks/ranks.cpp model/model_source.cpp model/run/folder.cpp)))
$(BUILD)/fuzz/%.o: %.cpp $(SETTINGS)
	@mkdir -p $(@D)
	$(call quiet,compile)clang++ -std=c++20 -O2 -g1 -fsanitize=fuzzer-no-link,address,undefined \
	    -fno-sanitize-recover=all -D_OPENMP=0 -isystem dev/lint -I. $(DEPS_CPPFLAGS) -MMD -MP -c $< -o $@
$(BUILD)/fuzz/fuzz: $(FUZZ_OBJECTS)
	$(call quiet,link)clang++ -fsanitize=fuzzer,address,undefined $^ -o $@ $(DEPS_LDFLAGS) $(HASH)

# tests of the GPU code are host code, but for kernels of their own: they need CUDA's headers, not its compiler
$(BUILD)/dev/test/gpu/%.o: CXXFLAGS += -isystem $(CUDA_HEADERS)
# without a GPU the emulator alone runs a part of them, on a few rows
$(if $(DETECTED),,$(BUILD)/dev/test/gpu/%.o: OPTIMIZE := $(OPTIMIZE:-O3=-Og))

$(OUT)test_gpt2cu: $(call gpu_objects,$(wildcard dev/test/gpu/*.cu) $(GPU_SOURCES)) \
                   $(call objects,$(wildcard dev/test/gpu/*.cpp)) $(BUILD)/dev/test/shared.a $(BUILD)/libllmc.a
	@mkdir -p $(@D)
	$(LINK) $^ -o $@ $(DEPS_LDFLAGS) $(GPU_LIBS)

# Without a GPU nothing runs the device code: for what it was compiled for, as it was; else for one GPU, a third of the time,
# and soon rather than well, which a later make does again.
COMPILED  := $(shell sed 1q $(BUILD)/arch 2>/dev/null)
TEST_ARCH := $(if $(DETECTED)$(filter command environment,$(origin ARCH)),$(ARCH),$(or $(COMPILED),sm_90a))
HOW       := $(if $(DETECTED),,$(if $(COMPILED),$(shell sed -n 3p $(BUILD)/arch),UNRUN))
test:
	@$(MAKE) --no-print-directory ARCH="$(TEST_ARCH)" UNRUN="$(HOW)" $(PROGRAMS) $(OUT)test_durable \
	    $(if $(NVCC),$(GPU_PROGRAMS) $(OUT)test_emulated)
	@dev/test/run.sh

# all of what `make test` tries a part of, the house built alone, and ranks killed and stopped 50 times
faults: $(PROGRAMS) test_durable
	./test_durable --all
	dev/test/house.sh --build
	PLUMB_FAULTS=50 ./test_gpt2 --test-case="many ranks and faults*"
	dev/test/planted.sh

# the inner loop: CONTRIBUTING.md
quick: $(PROGRAMS)
	@dev/test/quick.sh
lint: build/deps.mk
	printf '%s\n' $(HOST_SOURCES) $(wildcard data/*.cpp) train_gpt2.cpp | xargs -P $(shell nproc) -I{} \
	    clang-tidy --quiet {} -- -std=c++20 -fopenmp -isystem dev/lint -I. $(DEPS_CPPFLAGS)

spills: $(addprefix $(BUILD)/typed/,$(LAYERNORM_TYPED))
	@NVCC="$(NVCC)" ARCH="$(GPUS)" FLAGS="$(FORMAT_FLAGS) $(DEPS_CPPFLAGS)" dev/test/spills.sh \
	    $(wildcard dev/cuda/*.cu llmc/ops/attention/ladder/*/*.cu) \
	    $(filter-out $(LAYERNORM_TYPED),$(GPU_SOURCES)) $^

.PHONY: test faults quick spills lint
