# The readers under libFuzzer: run.sh.
FUZZ_OBJECTS := $(patsubst %.cpp,$(BUILD)/fuzz/%.o,$(wildcard dev/test/fuzz/*.cpp llmc/model/formats/*.cpp \
    $(addprefix llmc/host/,base/*.cpp files/*.cpp tokens/*.cpp options/*.cpp)) \
    $(patsubst %,llmc/%.cpp,host/ranks/ranks host/log/run_log model/model_source model/run/folder model/run/open_model))
$(BUILD)/fuzz/%.o: %.cpp $(SETTINGS)
	@mkdir -p $(@D)
	$(call quiet,compile)clang++ -std=c++20 -O2 -g1 -fsanitize=fuzzer-no-link,address,undefined \
	    -fno-sanitize-recover=all -isystem dev/lint -I. $(DEPS_CPPFLAGS) -MMD -MP -c $< -o $@
$(BUILD)/fuzz/fuzz: $(FUZZ_OBJECTS)
	$(call quiet,link)clang++ -fsanitize=fuzzer,address,undefined $^ -o $@ $(DEPS_LDFLAGS) $(HASH)
