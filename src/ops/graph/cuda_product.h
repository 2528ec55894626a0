// Products of a few rows with packed matrices on CUDA devices, by a kernel of
// our own, together with what stands around them.
//
// MLX 0.32.4's own product is not used there. Seen on an H200: wrong numbers
// (one of them no number) for groups of 128, and in models of f32 rows with
// groups of 32 and 64 and heads of 90 rows; no answer for 2 bits; and 0.7 to 1
// of the device's 4.3 TB/s for one row of an 8B model's matrices in 4 bits.
#pragma once

#include "ops/graph/norm.h"

namespace mlxcel::graph {

struct DeviceMatrix;

// Around a product: residual + act(gate) * up of norm(x) W^T.
struct Fusions {
  const GraphNorm* norm = nullptr;
  const mx::array* residual = nullptr;
  Activation gate = Activation::none;  // none: the result is not gated
};

// Whether the kernel takes `rows` rows of x with this matrix: 16-bit
// activations and rows of the matrix that are whole lanes of 32 values.
bool cuda_takes(const Context& context, const DeviceMatrix& matrix, int rows);
// The same for what is to be done with the norm and the gate.
bool cuda_takes_norm(
    const Context& context, const GraphNorm& norm, int rows, int in);
bool cuda_takes_gate(Activation gate);

// x [rows, in], or [count, rows, in] times `count` equal blocks of the matrix's
// rows; with ids (u32 [rows]) row i of x times block ids[i].
mx::array cuda_product(
    const DeviceMatrix& matrix,
    const mx::array& x,
    int count,
    const mx::array* ids,
    const Fusions& fusions);

}  // namespace mlxcel::graph
