// The native module: one part a file, and the translation of exceptions.
#include <nanobind/nanobind.h>

#include <exception>

#include "bind/block_pool.hpp"
#include "bind/scheduler.hpp"
#include "bind/speculation.hpp"
#include "bind/stub_device.hpp"
#include "scheduler/errors.hpp"

namespace nb = nanobind;

namespace di::scheduler {
namespace {

// The exception classes are Python's, so that they can carry typed attributes (di_scheduler.errors).
void translate(const std::exception_ptr& error, void*) {
  const auto python_class = [](const char* name) {
    return nb::module_::import_("di_scheduler.errors").attr(name);
  };
  try {
    std::rethrow_exception(error);
  } catch (const AdmissionError& e) {
    const nb::object type = python_class("AdmissionError");
    PyErr_SetObject(type.ptr(), type(e.reason, e.what()).ptr());
  } catch (const ConfigError& e) {
    PyErr_SetString(python_class("ConfigError").ptr(), e.what());
  } catch (const StepOrderError& e) {
    PyErr_SetString(python_class("StepOrderError").ptr(), e.what());
  } catch (const BlockPoolError& e) {
    PyErr_SetString(python_class("BlockPoolError").ptr(), e.what());
  }
}

}  // namespace
}  // namespace di::scheduler

NB_MODULE(_native, m) {
  m.doc() = "C++ core of di_scheduler; use the classes of the package instead.";
  nb::register_exception_translator(di::scheduler::translate);
  di::scheduler::bind_block_pool(m);
  di::scheduler::bind_speculation(m);
  di::scheduler::bind_scheduler(m);
  di::scheduler::bind_stub_device(m);
}
