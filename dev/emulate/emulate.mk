# LayerNorm's kernels, and a few others, on the CPU: machine.h, README.md.
#:   make test_emulated                     tests of LayerNorm's kernels on the CPU
#:   make build/emulated/dev/cuda/layernorm_forward    a shootout on the CPU, for --check
# as they are compiled for Hopper; 800: for Ampere
EMULATED_ARCH ?= 900
EMULATED  := $(BUILD)/emulated
REWRITTEN := $(patsubst %,$(EMULATED)/%,$(wildcard llmc/*/*.cuh llmc/*/*/*.cuh \
    llmc/layernorm/ladder/*/*.cuh llmc/ops/*/ladder/*.cuh llmc/ops/*/ladder/*/*.cuh dev/cuda/*.cuh))
# -Og: a third of the time to compile, and they run as fast. Vectors that are not aligned are errors, as on a GPU
EMULATE    = $(call quiet,compile)$(CXX) $(CXXFLAGS) -Og -D__CUDA_ARCH__=$(EMULATED_ARCH) -fsanitize=alignment \
             -fno-sanitize-recover=alignment -Wno-attributes -Wno-unknown-pragmas -Wno-unused -Wno-sign-compare \
             -Wno-narrowing -Wno-missing-field-initializers -Wno-maybe-uninitialized -Idev/emulate/include \
             -I$(EMULATED) -I. $(DEPS_CPPFLAGS) -isystem $(CUDA_HEADERS) -MMD -MP
.SECONDARY: $(REWRITTEN)
NO_HEADERS := $(if $(CUDA_HEADERS),,no_cuda_headers)
no_cuda_headers:
	$(error no CUDA headers: dev/emulate/README.md says how to get them without a toolkit)
$(EMULATED)/%: % dev/emulate/rewrite.pl
	@mkdir -p $(@D)
	@[ ! -e $< ] || perl dev/emulate/rewrite.pl $< > $@  # a header that is gone, which what was built before names
$(EMULATED)/std.h.gch: $(SETTINGS) | $(NO_HEADERS)
	@mkdir -p $(@D)
	@printf '#include <%s>\n' $(STANDARD) cuda_bf16.h cuda_fp16.h cuda_runtime_api.h > $(basename $@)
	$(EMULATE) -x c++-header $(basename $@) -o $@
$(EMULATED)/%.cu.o: $(EMULATED)/%.cu $(SETTINGS) | $(REWRITTEN) $(EMULATED)/std.h.gch
	$(EMULATE) -include $(EMULATED)/std.h -x c++ -c $< -o $@
# -U: a checked longjmp refuses to go to another stack
$(BUILD)/dev/emulate/%.o $(BUILD)/dev/exercises/%.o: CXXFLAGS += -isystem $(CUDA_HEADERS) -Idev/emulate/include -U_FORTIFY_SOURCE
# what the time goes into are the kernels, not what checks them
$(BUILD)/dev/emulate/test_%.o: OPTIMIZE := $(OPTIMIZE:-O3=-Og)
# the machine, and the kernels that ship
EMULATED_MACHINE := $(call objects,$(addprefix dev/emulate/,machine.cpp instructions.cpp runtime.cpp)) $(BUILD)/libllmc.a
EMULATED_OBJECTS := $(EMULATED_MACHINE) \
    $(patsubst %,$(EMULATED)/%.o,$(filter-out llmc/layernorm/c_abi.cu,$(LAYERNORM_SOURCES)))
# other layers' kernels without tensor cores
EMULATED_OPS := $(EMULATED)/llmc/layernorm/fp8/layernorm_fp8.cu.o \
    $(patsubst %,$(EMULATED)/llmc/ops/%.cu.o,fp8 classifier/classifier column_sums/bias \
    attention/fp32 adamw muon/muon global_norm comm/host \
    $(foreach v,v1 v2,attention/ladder/forward/$(v) attention/ladder/backward/$(v))) \
    $(patsubst %,$(EMULATED)/%.o,$(wildcard llmc/ops/decode/*.cu))
# -rdynamic: kernels have names
LINK_EMULATED = $(LINK) -rdynamic -fsanitize=alignment $(filter %.o %.a,$^) -o $@ -Wl,--as-needed -l:libxxhash.a
$(OUT)test_emulated: $(call objects,$(addprefix dev/emulate/,test_layers.cpp test_layernorm_choices.cpp)) \
                     $(addprefix $(EMULATED)/dev/emulate/test_,machine.cu.o many_ranks.cu.o) \
                     $(call objects,$(wildcard dev/test/gpu/test_layernorm*.cpp) $(addprefix dev/test/gpu/test_, \
                         decode.cpp classifier.cpp fp8.cpp sums.cpp optimizers.cpp)) $(BUILD)/dev/test/shared.a \
                     $(EMULATED_OPS) $(EMULATED_OBJECTS)
	@mkdir -p $(@D)
	$(LINK_EMULATED)
# make build/emulated/dev/cuda/layernorm_forward: a ladder, for --check; with ONLY=v2 that rung
NOT_EMULATED := $(ATTENTION_SHOOTOUTS)
EMULATED_LADDERS := $(addprefix $(EMULATED)/,$(filter-out $(NOT_EMULATED),$(SHOOTOUTS)))
$(addprefix $(EMULATED)/,$(NOT_EMULATED)):
	$(error $@: tensor cores are not emulated; attention's v1 and v2 are: ./test_emulated --test-case="attention*")
ifdef ONLY
$(ALONE_BUILD)/emulated/%.cu.o: $(EMULATED)/%.cu $(SETTINGS) $(ALONE_BUILD)/dev/cuda/only.h | $(REWRITTEN) \
                                $(EMULATED)/std.h.gch
	@mkdir -p $(@D)
	$(EMULATE) -include $(EMULATED)/std.h -x c++ -c $< -o $@
$(ALONE_BUILD)/emulated/%.cu.o: CXXFLAGS += -I$(ALONE_BUILD)
$(addprefix $(EMULATED)/,$(ALONE)): $(EMULATED)/%: $(ALONE_BUILD)/emulated/%.cu.o \
                                    $(if $(WHOLE),$(EMULATED_OBJECTS),$(EMULATED_MACHINE))
endif
$(filter-out $(addprefix $(EMULATED)/,$(ALONE)),$(EMULATED_LADDERS)): %: %.cu.o $(EMULATED_OPS) $(EMULATED_OBJECTS)
$(EMULATED_LADDERS): $(patsubst %,$(EMULATED)/%.o,$(HARNESS) llmc/cuda/measuring.cu) $(BUILD)/only/linked
	$(LINK_EMULATED)

# ---- exercises: a rung with a hole, graded on the machine (doc/exercises.md)
#:   make exercise-layernorm_forward-3      exercises/layernorm_forward_v3.cuh: a rung with a hole; doc/exercises.md lists them
#:   make grade-layernorm_forward-3         what is wrong with it; needs no GPU and no CUDA toolkit
#:   make grade-all SUBMISSIONS=dir         a table of all files below a folder
#:   make exercises-proof                   the rungs pass, holes and planted mistakes fail as they should
GRADER := $(call objects,$(addprefix dev/exercises/,grade.cpp watch.cpp) $(addprefix dev/emulate/,machine.cpp instructions.cpp \
    runtime.cpp)) $(FORMAT)
GRADER_HEADERS := $(filter $(EMULATED)/llmc/cuda/% $(EMULATED)/llmc/ops/attention/%,$(REWRITTEN))
$(filter $(BUILD)/dev/%,$(GRADER)): | $(NO_HEADERS)
$(BUILD)/dev/exercises/%.o: OPTIMIZE := $(PLAIN)
# what a variable holds that nobody has set is no zero
accepted = $(shell $(CXX) $(1) -E -x c++ /dev/null >/dev/null 2>&1 && echo $(1))
# Each access is a call: those of -fsanitize=thread, whose place watch.cpp takes. -no-pie: an address is a line.
grading = GRADE_COMPILE='$(CXX) $(CXXFLAGS) -w -Og -g1 -fno-pie -fno-threadsafe-statics -finline-small-functions \
    -fsanitize=thread --param tsan-instrument-func-entry-exit=0 -fsanitize=alignment$(comma)bounds \
    $(call accepted,-ftrivial-auto-var-init=pattern) -D__CUDA_ARCH__=900 -Idev/emulate/include -I$(EMULATED) -I. \
    $(DEPS_CPPFLAGS) -isystem $(CUDA_HEADERS) -x c++' \
    GRADE_LINK='$(CXX) -no-pie -fopenmp $(GRADER)' perl dev/exercises/exercise.pl
exercise-%:
	@perl dev/exercises/exercise.pl cut $*
grade-all: $(GRADER) $(GRADER_HEADERS)
	@$(grading) all "$(SUBMISSIONS)"
grade-%: $(GRADER) $(GRADER_HEADERS)
	@$(grading) grade $*
exercises-proof: $(GRADER) $(GRADER_HEADERS)
	@$(grading) proof $(PART)
.PHONY: grade-all exercises-proof
