// Where a request's handler runs, and how other threads reach it.
#pragma once

#include <coroutine>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

namespace mlxcel::http {

class Executor {
 public:
  virtual ~Executor() = default;
  // Runs the function after the calling one has returned, never two of one
  // executor at a time. From any thread.
  virtual void post(std::function<void()> work) = 0;
  // Runs the function on a thread that may block.
  virtual void post_blocking(std::function<void()> work) = 0;
};

// Values from any thread to one waiting handler, in order.
template <typename T>
class Mailbox : public std::enable_shared_from_this<Mailbox<T>> {
 public:
  explicit Mailbox(std::shared_ptr<Executor> executor)
      : executor_(std::move(executor)) {}

  // From any thread. A closed mailbox drops the value and returns false.
  bool push(T value) {
    std::unique_lock lock(mutex_);
    if (closed_) {
      return false;
    }
    values_.push_back(std::move(value));
    wake(lock);
    return true;
  }

  // From any thread: next() gives what is left, then nothing.
  void close() {
    std::unique_lock lock(mutex_);
    closed_ = true;
    wake(lock);
  }

  // co_await mailbox.next(): std::optional<T>, empty once closed.
  auto next() {
    struct Awaiter {
      explicit Awaiter(Mailbox& mailbox) : box(mailbox) {}
      Mailbox& box;
      bool await_ready() {
        std::lock_guard lock(box.mutex_);
        return box.closed_ || !box.values_.empty();
      }
      bool await_suspend(std::coroutine_handle<> handle) {
        std::lock_guard lock(box.mutex_);
        if (box.closed_ || !box.values_.empty()) {
          return false;
        }
        box.waiter_ = handle;
        return true;
      }
      std::optional<T> await_resume() {
        return box.try_next();
      }
    };
    return Awaiter(*this);
  }

  // What is there now, without waiting.
  std::optional<T> try_next() {
    std::lock_guard lock(mutex_);
    if (values_.empty()) {
      return std::nullopt;
    }
    std::optional<T> value(std::move(values_.front()));
    values_.pop_front();
    return value;
  }

 private:
  void wake(std::unique_lock<std::mutex>& lock) {
    std::coroutine_handle<> waiter = std::exchange(waiter_, {});
    lock.unlock();
    if (waiter) {
      // The handler may drop its mailbox before the post has run.
      executor_->post(
          [self = this->shared_from_this(), waiter] { waiter.resume(); });
    }
  }

  std::mutex mutex_;
  std::deque<T> values_;
  std::coroutine_handle<> waiter_;
  bool closed_ = false;
  std::shared_ptr<Executor> executor_;
};

// co_await background(executor, function): its result, computed on a thread
// that may block; what it throws is thrown here. For work that would hold up
// other connections: templates and tokenizers on long texts, files, grammars.
template <typename Function>
auto background(std::shared_ptr<Executor> executor, Function function) {
  using Result = std::invoke_result_t<Function&>;
  constexpr bool kNothing = std::is_void_v<Result>;
  struct Awaiter {
    Awaiter(std::shared_ptr<Executor> owner, Function work)
        : executor(std::move(owner)), function(std::move(work)) {}
    std::shared_ptr<Executor> executor;
    Function function;
    std::optional<std::conditional_t<kNothing, bool, Result>> result;
    std::exception_ptr error;

    bool await_ready() {
      return false;
    }
    void await_suspend(std::coroutine_handle<> handle) {
      executor->post_blocking([this, handle] {
        try {
          if constexpr (kNothing) {
            function();
          } else {
            result.emplace(function());
          }
        } catch (...) {
          error = std::current_exception();
        }
        executor->post([handle] { handle.resume(); });
      });
    }
    Result await_resume() {
      if (error) {
        std::rethrow_exception(error);
      }
      if constexpr (!kNothing) {
        return std::move(*result);
      }
    }
  };
  return Awaiter(std::move(executor), std::move(function));
}

}  // namespace mlxcel::http
