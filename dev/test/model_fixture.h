// What tests of the CPU model and of its files share: any_model.h and the model itself.
#pragma once
#include "dev/test/any_model.h"
#include "llmc/gpt2_cpu.h"
