# Kernel shootouts, the ladders' races: README.md.
#:   make dev/cuda/layernorm_forward        a kernel shootout, of the .cu of that name; ONLY=v2: LayerNorm's, of a rung alone
#:   make diff-layernorm_forward-1-2        what rung 2 changed
#:   make tables                            the measured tables that no document shows: build/measured.md
HARNESS   := dev/cuda/harness.cu
SHOOTOUTS := $(patsubst %.cu,%,$(filter-out $(HARNESS),$(wildcard dev/cuda/*.cu)))
GPU_PROGRAMS += $(SHOOTOUTS)

# ONLY=v2, or 2: of LayerNorm's ladders that rung alone, without the kernels that train (dev/cuda/only.h). EXERCISE=NAME: with
# what a reader wrote in its place, which dev/exercises/exercise.pl has put into that folder.
ifdef ONLY
override ONLY := $(if $(wildcard llmc/layernorm/ladder/*/v$(ONLY).*),v)$(ONLY)
$(if $(filter ship,$(ONLY))$(wildcard llmc/layernorm/ladder/*/$(ONLY).*),,\
    $(error ONLY=$(ONLY): no such rung in llmc/layernorm/ladder/))
ALONE := $(filter %layernorm_forward %layernorm_backward,$(SHOOTOUTS))
ALONE_BUILD := $(BUILD)/only/$(ONLY)$(EXERCISE)
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
	$(call keep,'$(ONLY)$(EXERCISE)')

# a ladder ends with the function that trains, which is compiled once
WHOLE := $(if $(filter-out ship,$(ONLY)),,$(SHOOTOUTS))
$(filter %layernorm_forward,$(WHOLE)): $(call gpu_objects,$(filter llmc/layernorm/forward/% %/layernorm/dropout.cu,$(LAYERNORM_SOURCES)))
$(filter %layernorm_backward,$(WHOLE)): $(call gpu_objects,$(filter llmc/layernorm/backward/% %/layernorm/dropout.cu,$(LAYERNORM_SOURCES)))
# a rung of attention's is a file; the roof is the rate of a product
$(filter %attention_forward,$(SHOOTOUTS)): $(call gpu_objects,$(wildcard llmc/ops/attention/ladder/forward/*.cu))
$(filter %attention_backward,$(SHOOTOUTS)): $(call gpu_objects,$(wildcard llmc/ops/attention/ladder/backward/*.cu))
ATTENTION_SHOOTOUTS := $(filter dev/cuda/attention_%,$(SHOOTOUTS))
$(ATTENTION_SHOOTOUTS): $(call gpu_objects,$(addprefix llmc/,ops/matmul/matmul.cu ops/column_sums/bias.cu ops/gelu.cu) \
    $(filter-out %c_abi.cu %/backward_bias.cu,$(wildcard llmc/ops/attention/*.cu)))
$(ATTENTION_SHOOTOUTS): SHOOTOUT_LIBS := -lcublasLt $(foreach d,$(CUDA_LIBS),-Xlinker -rpath -Xlinker $(d))
$(filter %/layernorm_fp8,$(SHOOTOUTS)): $(call gpu_objects,llmc/layernorm/fp8/layernorm_fp8.cu llmc/ops/fp8.cu)
$(filter %/layernorm_modulate,$(SHOOTOUTS)): $(call gpu_objects,$(wildcard llmc/layernorm/modulate/*.cu))
# see dev/cuda/clock.cuh's kStream; without a GPU nothing runs their host code
SHOOTOUT_OBJECTS := $(call gpu_objects,$(addsuffix .cu,$(SHOOTOUTS)) $(HARNESS))
$(SHOOTOUT_OBJECTS): NVCCFLAGS := $(if $(DETECTED),$(NVCCFLAGS),$(NVCCFLAGS_PTX:-O3=-O0)) --default-stream per-thread
$(SHOOTOUT_OBJECTS): CXXFLAGS += -DCUDA_API_PER_THREAD_DEFAULT_STREAM
$(filter-out $(ALONE),$(SHOOTOUTS)): %: $(BUILD)/%.cu.o
# of the library: options, formats
$(SHOOTOUTS): $(call gpu_objects,$(HARNESS) llmc/cuda/measuring.cu) $(BUILD)/only/linked $(BUILD)/libllmc.a
	$(has_nvcc)
	$(for_whom)
	$(call quiet,link)$(NVCC) $(GENCODE) -Xcompiler -fopenmp $(filter %.o,$^) $(BUILD)/libllmc.a -o $@ $(SHOOTOUT_LIBS) \
	    $(filter -L%,$(DEPS_LDFLAGS)) -Xlinker -l:libxxhash.a

diff-%:
	@set -- $(subst -, ,$*); op=$${1#layernorm_}; ladder=llmc/layernorm/ladder/$${op%_layernorm_forward}; \
	    case $$1 in attention_*) ladder=llmc/ops/attention/ladder/$${1#attention_};; esac; \
	    for rung in $$2 $$3; do ls $$ladder/v$$rung.* >/dev/null 2>&1 || \
	        { echo "make $@: no file of rung $$rung there:" $$ladder/v* >&2; exit 1; }; done; \
	    git --no-pager diff --no-index $$ladder/v$$2.* $$ladder/v$$3.* || true

.PHONY: tables
tables:
	@mkdir -p $(BUILD) && dev/bench/tables.py --report $(BUILD)/measured.md
