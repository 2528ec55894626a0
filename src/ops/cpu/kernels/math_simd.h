// Functions of the vectors of simd_*.h. Included inside an anonymous namespace,
// after one of these.

// e^x with a relative error of about 2^-23: x = n ln 2 + r, |r| <= ln 2 / 2,
// and the polynomial of Cephes' expf.
inline F f_exp(F x) {
  x = f_min(f_max(x, f_set(-87.3f)), f_set(88.3f));
  F n = f_round(f_mul(x, f_set(1.44269504f)));
  F r = f_fma(n, f_set(-0.693359375f), x);
  r = f_fma(n, f_set(2.12194440e-4f), r);
  F p = f_set(1.9875691500e-4f);
  p = f_fma(p, r, f_set(1.3981999507e-3f));
  p = f_fma(p, r, f_set(8.3334519073e-3f));
  p = f_fma(p, r, f_set(4.1665795894e-2f));
  p = f_fma(p, r, f_set(1.6666665459e-1f));
  p = f_fma(p, r, f_set(5.0000001201e-1f));
  p = f_fma(p, f_mul(r, r), f_add(r, f_set(1)));
  I power = i_shl32<23>(i_add(f_to_i(n), i_set(127)));
  return f_mul(p, i_as_f(power));
}

inline F f_sigmoid(F x) {
  return f_div(f_set(1), f_add(f_set(1), f_exp(f_sub(f_zero(), x))));
}
