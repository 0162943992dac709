# Device code: nvcc, for which GPUs it compiles, the flags; train_gpt2cu.
# ARCH defaults to this machine's GPU; without one: Ampere, Hopper, and PTX that newer GPUs compile at start.
DETECTED := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u | tr -d . | \
                    sed 's/^90$$/90a/; s/^/sm_/')
ARCH     ?= $(if $(DETECTED),$(DETECTED),sm_80 sm_90a compute_80)
# 90a means sm_90a; so does sm_90, whose code would lack wgmma
GPUS     := $(patsubst sm_90,sm_90a,$(foreach a,$(ARCH),$(if $(filter sm_% compute_%,$(a)),$(a),sm_$(a))))
GENCODE  := $(foreach a,$(GPUS),-gencode arch=compute_$(patsubst sm_%,%,$(patsubst compute_%,%,$(a)))$(comma)code=$(a))
# {fmt} knows too little of nvcc: its checks of formats are made where the host's compiler reads the same headers
FORMAT_FLAGS := -DFMT_CONSTEVAL= -DFMT_USE_CONSTEXPR=1
# -compress-all: kernels take a fifth of the space; LINEINFO: for profilers, twice the space
# UNRUN=1: what nobody runs is compiled soon rather than well (dev/test/test.mk)
LINEINFO  ?= -lineinfo
NVCCFLAGS := -std=c++20 $(if $(UNRUN),-O0 --Ofast-compile=max,-O3 $(LINEINFO)) -I. $(FORMAT_FLAGS) $(DEPS_CPPFLAGS) \
             --expt-relaxed-constexpr -Xfatbin -compress-all $(GENCODE) -MMD -MP -Xcompiler -fopenmp,-Wall,-march=$(MARCH)
# of what nobody runs PTX is enough for the types whose kernels are bf16's otherwise (fp16, mixed, fp64), and for shootouts
NVCCFLAGS_PTX := $(if $(UNRUN),$(subst code=sm_,code=compute_,$(NVCCFLAGS)),$(NVCCFLAGS))
CUDA      := $(if $(NVCC),$(patsubst %/bin/nvcc,%,$(realpath $(NVCC))))
# without a toolkit, NVIDIA's headers from PyPI, for what is compiled for the CPU (dev/emulate/README.md)
CUDA_HEADERS := $(patsubst %/cuda_bf16.h,%,$(firstword $(wildcard \
    $(CUDA)/include/cuda_bf16.h build/cuda/nvidia/cu13/include/cuda_bf16.h)))
CUDA_LIBS := $(wildcard $(CUDA)/lib64 $(CUDA)/lib $(CUDA)/targets/x86_64-linux/lib)
GPU_LIBS  := $(foreach d,$(CUDA_LIBS),-L$(d) -Wl$(comma)-rpath$(comma)$(d)) -lcublasLt -lcudart_static -ldl -lrt -lpthread \
             -Wl,--as-needed -l:libxxhash.a
for_whom   = @echo "for $(GPUS)$(if $(DETECTED),, (no GPU here))"
has_nvcc   = $(if $(NVCC),,$(error no nvcc: install the CUDA Toolkit, or set NVCC=path))
gpu_objects = $(patsubst %.cu,$(BUILD)/%.cu.o,$(1))

# for which GPUs what is there was compiled, and how: if not so, it is compiled again
$(BUILD)/arch: FORCE
	$(call keep,'$(GPUS)' '$(GENCODE)' $(if $(UNRUN),UNRUN))

define compile_cu
$(has_nvcc)
@mkdir -p $(@D)
$(call quiet,compile)$(NVCC) $(NVCCFLAGS) -MF $(@:.o=.d) -c $< -o $@
endef
$(BUILD)/%.cu.o: %.cu $(SETTINGS) $(BUILD)/arch
	$(compile_cu)
# no device code is in these: for the host's compiler, as nvcc reads a file three times
HOST_CU := train_gpt2.cu $(patsubst %,llmc/%.cu,layernorm/c_abi model/profile/activity model/profile/profile \
    model/gpu/decoder model/gpu/gpt2 ops/attention/c_abi ops/comm/device_comm ops/comm/host ops/matmul/matmul) \
    $(patsubst %,dev/cuda/%.cu,harness attention_forward attention_backward)
define compile_host_cu
@mkdir -p $(@D)
$(COMPILE) -include $(PRECOMPILED) -Wno-unknown-pragmas -Wno-missing-field-initializers -isystem $(CUDA_HEADERS) \
    -include cuda_runtime.h -x c++ -c $< -o $@
endef
HOST_CU_OBJECTS := $(call gpu_objects,$(HOST_CU))
$(HOST_CU_OBJECTS): compile_cu = $(compile_host_cu)
$(HOST_CU_OBJECTS): OPTIMIZE := $(if $(UNRUN),$(PLAIN),$(OPTIMIZE))
$(HOST_CU_OBJECTS): | $(if $(filter file,$(origin PRECOMPILED)),$(HEADERS))
# wgmma code: for GPUs before Hopper nothing calls it; compiled soon it takes as long, and ptxas warns of what it will cost
$(call gpu_objects,$(shell grep -l wgmma llmc/ops/attention/*.cu llmc/ops/attention/ladder/*/*.cu dev/test/gpu/*.cu)): \
    NVCCFLAGS := $(filter-out --Ofast-compile=%,$(NVCCFLAGS)) -diag-suppress 177

include llmc/layernorm/typed.mk
GPU_SOURCES := $(wildcard $(addprefix llmc/,cuda/*.cu model/*/*.cu ops/*.cu ops/*/*.cu layernorm/fp8/*.cu)) $(LAYERNORM_SOURCES)
$(OUT)train_gpt2cu: $(call gpu_objects,train_gpt2.cu $(GPU_SOURCES)) $(BUILD)/libllmc.a $(if $(OUT),,| data/sample/val.json)
	@mkdir -p $(@D)
	$(LINK) $^ -o $@ $(DEPS_LDFLAGS) $(GPU_LIBS)
