# The readers under libFuzzer: run.sh.
FUZZ_OBJECTS := $(patsubst %.cpp,$(BUILD)/fuzz/%.o,$(wildcard dev/test/fuzz/*.cpp) \
    $(patsubst %,llmc/host/%.cpp,base/utf8 files/binary_file files/json files/read_file files/safetensors \
    $(addprefix tokens/,bpe dataloader eval_file token_shard tokenizer tokenizer_files val_info) ranks/ranks \
    $(addprefix options/,options options_config options_input parse_words typed_text) log/lines log/logger) \
    $(patsubst %,llmc/model/%.cpp,finite model_source $(addprefix formats/,checkpoint debug_state hf_model record) \
    run/folder run/open_model))
$(BUILD)/fuzz/%.o: %.cpp $(SETTINGS)
	@mkdir -p $(@D)
	$(call quiet,compile)clang++ -std=c++20 -O2 -g1 -fsanitize=fuzzer-no-link,address,undefined \
	    -fno-sanitize-recover=all -isystem dev/lint -I. $(DEPS_CPPFLAGS) -MMD -MP -c $< -o $@
$(BUILD)/fuzz/fuzz: $(FUZZ_OBJECTS)
	$(call quiet,link)clang++ -fsanitize=fuzzer,address,undefined $^ -o $@ $(DEPS_LDFLAGS) $(HASH)
