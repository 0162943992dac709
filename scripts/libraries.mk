# LayerNorm and attention for other programs: C interfaces, and no other symbol. SOVERSION is raised when programs that were
# linked before would break; without it in the name they would be started with a library that they do not fit.
SOVERSION := 1
# --gc-sections: what nobody calls of the C++ library, random numbers, would need this machine's glibc, and no older one.
define link_library
$(for_whom)
$(call quiet,link)$(CXX) -shared -Wl,-soname,$(@F).$(SOVERSION) -Wl,--version-script=$(filter %.map,$^) -Wl,--no-undefined \
    -Wl,--gc-sections -static-libstdc++ -static-libgcc $(filter %.o,$^) -o $@ \
    $(foreach d,$(CUDA_LIBS),-L$(d)) -lcudart_static -ldl -lrt -lpthread
@ln -sf $(@F) $@.$(SOVERSION)
endef
LAYERNORM_OBJECTS := $(call gpu_objects,$(LAYERNORM_SOURCES) llmc/layernorm/fp8/layernorm_fp8.cu)
ATTENTION_OBJECTS := $(call gpu_objects,$(filter-out %/backward_bias.cu,$(wildcard llmc/ops/attention/*.cu)))
$(LAYERNORM_OBJECTS) $(ATTENTION_OBJECTS): NVCCFLAGS += -Xcompiler -fPIC
$(filter %/c_abi.cu.o,$(LAYERNORM_OBJECTS) $(ATTENTION_OBJECTS)): CXXFLAGS += -fPIC
$(BUILD)/libllmc_layernorm.so: $(LAYERNORM_OBJECTS) $(FORMAT) llmc/layernorm/c_abi.map scripts/libraries.mk
	$(link_library)
$(BUILD)/libllmc_attention.so: $(ATTENTION_OBJECTS) $(FORMAT) llmc/ops/attention/c_abi.map scripts/libraries.mk
	$(link_library)

#:   make build/libllmc_layernorm.so        LayerNorm for other programs: llmc/layernorm/c_abi.h; libllmc_attention.so: attention
#:   make install PREFIX=/usr/local         both with their headers and files for pkg-config; DESTDIR=package: below that folder
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

#:   make wheels PYTHON=python3             the PyTorch package as a release carries it, in dist/: python/README.md
PYTHON     ?= python3
WHEEL_GPUS := sm_80 sm_86 sm_89 sm_90a sm_100 sm_120 compute_120
wheels:
	rm -rf $(BUILD)/wheels
	PLUMB_ARCH="$${PLUMB_ARCH-$(WHEEL_GPUS)}" $(PYTHON) -m pip wheel --no-deps . -w $(BUILD)/wheels
	$(PYTHON) -m auditwheel repair --plat manylinux_2_35_$(shell uname -m) --exclude 'libtorch*' --exclude 'libc10*' -w dist \
	    $(BUILD)/wheels/*.whl

.PHONY: install wheels $(INSTALLS)
