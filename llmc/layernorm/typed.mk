# LayerNorm's kernels have an object for each type of rows, of sources that typed.sh writes.
LAYERNORM_TYPED := $(foreach k,$(addprefix forward/,short_rows row_in_registers unaligned_rows fallback) \
    $(addprefix backward/,short_rows team_ring unaligned_rows fallback),$(foreach t,fp32 bf16 fp16,llmc/layernorm/$k.$t.cu)) \
    $(addprefix llmc/layernorm/,forward/fallback.fp64.cu backward/fallback.fp64.cu $(addsuffix .mixed.cu, \
    forward/row_in_registers forward/fallback backward/team_ring backward/fallback))
LAYERNORM_SOURCES := $(wildcard llmc/layernorm/*.cu llmc/layernorm/*ward/*.cu llmc/layernorm/modulate/*.cu) $(LAYERNORM_TYPED)

# emulated: what dev/emulate compiles for the CPU
$(foreach d,typed emulated,$(addprefix $(BUILD)/$d/,$(LAYERNORM_TYPED))): llmc/layernorm/typed.sh
	@mkdir -p $(@D)
	@llmc/layernorm/typed.sh $@ > $@
# nvcc's -O is for host code, of which these have a launch: the device code is the same
$(call gpu_objects,$(LAYERNORM_TYPED)): NVCCFLAGS := $(NVCCFLAGS:-O3=-O1)
$(call gpu_objects,$(filter %.fp16.cu %.mixed.cu %.fp64.cu,$(LAYERNORM_TYPED))): NVCCFLAGS := $(NVCCFLAGS_PTX:-O3=-O1)
$(BUILD)/%.cu.o: $(BUILD)/typed/%.cu $(SETTINGS) $(BUILD)/arch
	$(compile_cu)
