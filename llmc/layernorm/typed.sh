#!/bin/bash
# Writes the source of one of LayerNorm's objects, build/typed/llmc/layernorm/forward/short_rows.bf16.cu: the kernel of
# forward/short_rows.cuh for rows of bf16, beside weights of their type and of fp32.
set -eu
name=${1##*/layernorm/}
name=${name%.cu}
kernel=${name%.*}
declare -A types=([fp32]=float [bf16]=__nv_bfloat16 [fp16]=__half [fp64]=double)
type=${types[${name##*.}]}
result=bool rows=LayerNormForward
case $kernel in
    backward*) result=llmc::ColumnGroups rows=LayerNormBackwardRows ;;
    forward/short_rows | forward/row_in_registers) rows=LayerNormForwardRows ;;
esac
echo "#include \"llmc/layernorm/$kernel.cuh\""
weights="$type float"
case $type in float | double) weights=$type ;; esac
for weights in $weights; do
    echo "template $result llmc::${kernel#*/}_${kernel%/*}::launch(const llmc::$rows<$type, $weights>&,"
    echo "    const llmc::Choice&, cudaStream_t);"
done
