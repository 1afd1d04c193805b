# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/reference.safetensors with the reference implementation (safetensors and numpy from PyPI,
versions with TensorSpec); test_io_safetensors.c must write the same bytes. bf16 has no numpy type, so the dtype is named beside raw bytes."""
import sys
import numpy as np
import safetensors
from safetensors import TensorSpec, serialize

keep = []

def entry(dtype, a):
    keep.append(a)
    return TensorSpec(dtype=dtype, shape=a.shape, data_ptr=a.ctypes.data, data_len=a.nbytes)

def bf16(values):
    return (np.array(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)  # exact values only

tensors = {
    "u8": entry("uint8", np.array([1, 2, 255], np.uint8)),
    "f32": entry("float32", np.arange(6, dtype=np.float32).reshape(2, 3)),
    "bf16": entry("bfloat16", bf16([1, -2.5, 0, 2.0 ** 100])),
    "f16": entry("float16", np.array([1, -2.5, 0, 65504], np.float16)),
    "i64": entry("int64", np.array([-1, 1 << 40], np.int64)),
    "f64": entry("float64", np.array([0.1, -1e300])),
    "i32": entry("int32", np.array([-1, 1 << 30], np.int32)),
    "bool": entry("bool", np.array([True, False])),
    "i8": entry("int8", np.array([-128, 127], np.int8)),
    "i16": entry("int16", np.array([-32768, 32767], np.int16)),
    "scalar": entry("float32", np.array(3, np.float32)),
    "empty": entry("float32", np.zeros((0, 4), np.float32)),
    "another": entry("float32", np.array([7], np.float32)),
    "u16": entry("uint16", np.array([1, 65535], np.uint16)),
    "u32": entry("uint32", np.array([1, 2 ** 32 - 1], np.uint32)),
    "u64": entry("uint64", np.array([1, 2 ** 64 - 1], np.uint64)),
}
with open(sys.argv[1] if len(sys.argv) > 1 else "tests/golden/reference.safetensors", "wb") as f:
    f.write(serialize(tensors, {"format": "pt"}))
print("safetensors", safetensors.__version__)
