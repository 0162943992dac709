# The readers under libFuzzer: run.sh. _OPENMP: what --version names; the fuzzers are built without OpenMP.
FUZZ_OBJECTS := $(patsubst %.cpp,$(BUILD)/fuzz/%.o,$(wildcard dev/test/fuzz/*.cpp llmc/model/formats/*.cpp \
    $(addprefix llmc/host/,base/format.cpp base/text.cpp files/*.cpp tokens/*.cpp options/*.cpp log/*.cpp) \
    $(addprefix llmc/,host/ranks/ranks.cpp model/model_source.cpp model/run/folder.cpp)))
$(BUILD)/fuzz/%.o: %.cpp $(SETTINGS)
	@mkdir -p $(@D)
	$(call quiet,compile)clang++ -std=c++20 -O2 -g1 -fsanitize=fuzzer-no-link,address,undefined \
	    -fno-sanitize-recover=all -D_OPENMP=0 -isystem dev/lint -I. $(DEPS_CPPFLAGS) -MMD -MP -c $< -o $@
$(BUILD)/fuzz/fuzz: $(FUZZ_OBJECTS)
	$(call quiet,link)clang++ -fsanitize=fuzzer,address,undefined $^ -o $@ $(DEPS_LDFLAGS) $(HASH)
