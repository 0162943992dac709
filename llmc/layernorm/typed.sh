#!/bin/bash
# Writes the source of one of LayerNorm's objects, build/typed/llmc/layernorm/forward/short_rows.bf16.cu: the kernel of
# forward/short_rows.cuh for rows of bf16, beside weights of their type and of fp32; mixed: rows of fp32, out or dout of 16 bits.
set -eu
name=${1##*/layernorm/}
name=${name%.cu}
kernel=${name%.*}
declare -A types=([fp32]=float [bf16]=__nv_bfloat16 [fp16]=__half [fp64]=double [mixed]=float)
type=${types[${name##*.}]}
result=bool rows=LayerNormForward
case $kernel in
    backward*) result=llmc::ColumnGroups rows=LayerNormBackwardRows ;;
    forward/short_rows | forward/row_in_registers) rows=LayerNormForwardRows ;;
esac
echo "#include \"llmc/layernorm/$kernel.cuh\""
pairs=("$type, $type" "$type, float")  # of rows and weights
case ${name##*.} in
    fp32 | fp64) pairs=("$type, $type") ;;
    mixed) pairs=("float, float, __nv_bfloat16" "float, float, __half") ;;  # and of what is not of the rows' type
esac
for pair in "${pairs[@]}"; do
    echo "template $result llmc::${kernel#*/}_${kernel%/*}::launch(const llmc::$rows<$pair>&,"
    echo "    const llmc::Choice&, cudaStream_t);"
done
