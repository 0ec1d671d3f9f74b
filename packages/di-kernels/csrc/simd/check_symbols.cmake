# Fails when an object defines a weak symbol (an inline function or a template that was not inlined): the linker would
# keep one copy of it for the whole library, perhaps one that an older machine cannot run.
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND "${NM}" -C --defined-only "${object}" OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[0-9a-f]+ [WVu] [^\n]*" weak "${symbols}")
  if(weak)
    list(JOIN weak "\n  " weak)
    message(FATAL_ERROR "${object} defines weak symbols; mark them DI_INLINE:\n  ${weak}")
  endif()
endforeach()
