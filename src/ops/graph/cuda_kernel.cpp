#include "ops/graph/cuda_kernel.h"

#include "core/error.h"

namespace mlxcel::graph {

CudaKernel::CudaKernel(
    const std::string& name,
    const std::vector<std::string>& inputs,
    std::vector<std::string> numbers,
    const std::string& source,
    const std::string& header)
    : numbers_(std::move(numbers)),
      // MLX keeps compiled kernels in files by their names, so that the name
      // must say which text it stands for.
      make_(mx::fast::cuda_kernel(
          cat("mlxcel_",
              name,
              "_",
              std::hash<std::string>()(header + source) % 0x100000000),
          inputs,
          {"y"},
          source,
          header)) {}

mx::array CudaKernel::operator()(
    std::vector<mx::array> inputs,
    const std::vector<int>& numbers,
    const Launch& launch,
    mx::Shape shape,
    mx::Dtype type) const {
  mx::Dtype first = inputs.front().dtype();
  std::vector<int> key{
      mx::default_stream(mx::Device::gpu).index,
      int(first.val()),
      int(type.val()),
      launch.blocks[0],
      launch.blocks[1],
      launch.blocks[2],
      launch.threads};
  key.insert(key.end(), numbers.begin(), numbers.end());
  std::lock_guard lock(mutex_);
  std::shared_ptr<mx::Primitive>& made = made_[std::move(key)];
  if (made) {
    return mx::array(std::move(shape), type, made, std::move(inputs));
  }
  std::vector<std::pair<std::string, mx::fast::TemplateArg>> arguments{
      {"T", first}};
  for (size_t i = 0; i < numbers.size(); ++i) {
    arguments.emplace_back(numbers_[i], numbers[i]);
  }
  mx::array out = make_(
                      inputs,
                      {std::move(shape)},
                      {type},
                      {launch.blocks[0] * launch.threads,
                       launch.blocks[1],
                       launch.blocks[2]},
                      {launch.threads, 1, 1},
                      arguments,
                      std::nullopt,
                      false,
                      {})
                      .front();
  made = out.primitive_ptr();
  return out;
}

}  // namespace mlxcel::graph
