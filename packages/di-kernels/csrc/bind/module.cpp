#include <nanobind/stl/string.h>

#include "bind/tensor.hpp"
#include "isa.hpp"
#include "parallel.hpp"

namespace di::bind {
namespace {

// The interface of one Python type (torch.Tensor or a subclass), looked up once per type in use.
struct CachedApi {
  PyTypeObject* type = nullptr;
  DiDLExchangeApi* api = nullptr;
};

DiDLExchangeApi* find_api(PyTypeObject* type) noexcept {
  PyObject* capsule = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__");
  if (capsule == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  auto* api = static_cast<DiDLExchangeApi*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  Py_DECREF(capsule);
  if (api == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  return api->header.version.major == 1 && api->borrow != nullptr ? api : nullptr;
}

// Only torch knows it: the interface has no word for it.
bool is_negated(nb::handle tensor) noexcept {
  static PyObject* const name = PyUnicode_InternFromString("is_neg");
  PyObject* answer = PyObject_CallMethodNoArgs(tensor.ptr(), name);
  if (answer == nullptr) PyErr_Clear();
  Py_XDECREF(answer);
  return answer == Py_True;
}

}  // namespace

bool borrow(nb::handle object, View* out) noexcept {
  static CachedApi cached;  // written under the interpreter lock only
  PyTypeObject* type = Py_TYPE(object.ptr());
  if (type != cached.type) {
    DiDLExchangeApi* api = find_api(type);
    if (api == nullptr) return false;
    cached = {type, api};
  }
  if (cached.api->borrow(object.ptr(), &out->tensor) != 0) {
    PyErr_Clear();
    return false;
  }
  const uint8_t code = out->tensor.dtype.code;
  out->negated = (code == DType<float>::code || code == DType<bf16>::code) && is_negated(object);
  return true;
}

}  // namespace di::bind

NB_MODULE(_native, m) {
  m.doc() = "CPU kernels of di_kernels";
  m.def("num_threads", &di::num_threads);
  m.attr("WORK_PER_THREAD") = di::kWorkPerThread;
  m.attr("MAX_THREADS") = di::kMaxThreads;
  m.def("set_num_threads", [](int count, int64_t work_per_thread) {
    di::bind::require(count >= 1 && count <= di::kMaxThreads, "count must be 1 to MAX_THREADS");
    di::bind::require(work_per_thread >= 1, "work_per_thread must be at least 1");
    di::set_num_threads(count, work_per_thread);
  });
  m.def("pin_threads", &di::pin_threads, nb::arg("on"));
  m.def("threads_are_pinned", &di::threads_are_pinned);
  m.def("instruction_sets", [] {
    nb::list names;
    for (const di::Isa isa : di::supported_isas()) names.append(nb::cast(std::string(di::isa_name(isa))));
    return names;
  });
  m.def("instruction_set", [] { return std::string(di::isa_name(di::active_isa())); });
  m.def("set_instruction_set", [](const std::string& name) { return di::use_isa(name); });
  m.def("tiles_in_use", &di::tiles_in_use);
  di::bind::bind_math(m);
  di::bind::bind_ceilings(m);
  di::bind::bind_formats(m);
  di::bind::bind_linear(m);
  di::bind::bind_norm(m);
  di::bind::bind_rope(m);
  di::bind::bind_cache(m);
  di::bind::bind_moe(m);
  di::bind::bind_route(m);
  di::bind::bind_hyper(m);
  di::bind::bind_embedding(m);
  di::bind::bind_engram(m);
  di::bind::bind_attention(m);
  di::bind::bind_compress(m);
  di::bind::bind_indexer(m);
  di::bind::bind_topk(m);
  di::bind::bind_sampling(m);
  di::bind::bind_plan(m);
}
