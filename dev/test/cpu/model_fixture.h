// What tests of the CPU model and of its files share: any_model.h and the model itself.
#pragma once
#include "dev/test/cpu/any_model.h"
#include "llmc/model/cpu/gpt2.h"
