# tests: one cmocka program per tests/unit/test_*.c and one helper program per tests/programs/*.c, linked against
# everything; one libFuzzer program per tests/fuzz/fuzz_*.c. tests/run.sh starts them all.
UNIT_TESTS := $(patsubst tests/unit/%.c,$(B)/tests/%,$(wildcard tests/unit/test_*.c))
TEST_PROGRAMS := $(patsubst tests/programs/%.c,$(B)/tests/programs/%,$(wildcard tests/programs/*.c))
TEST_OBJS := $(patsubst %.c,$(B)/obj/%.o,$(wildcard tests/unit/*.c tests/programs/*.c))
$(TEST_OBJS): OBJFLAGS = $(MPI_CFLAGS) $(PMIX_CFLAGS) $(HDF5_CFLAGS)
$(B)/tests/programs/%: $(B)/obj/tests/programs/%.o $(ALL_ARCHIVES)
	@mkdir -p $(@D)
	@$(if $(Q),echo "  LD    $@")
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(ALL_LIBS)
$(B)/tests/%: $(B)/obj/tests/unit/%.o $(ALL_ARCHIVES)
	@mkdir -p $(@D)
	@$(if $(Q),echo "  LD    $@")
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ -lcmocka $(ALL_LIBS)
.SECONDARY:
.PHONY: unit-tests
unit-tests: $(UNIT_TESTS) $(TEST_PROGRAMS)

# Fuzzers are built by clang, with everything they call, under build/fuzz. They link the parsers' archives only:
# kernels need gcc's OpenMP and parse nothing.
FUZZERS := $(patsubst tests/fuzz/%.c,build/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_FLAGS := -fsanitize=address,undefined -fno-sanitize-recover=undefined
build/fuzz/fuzz_%: build/fuzz/obj/tests/fuzz/fuzz_%.o $(filter-out $(LIBKERNELS),$(ALL_ARCHIVES))
	@$(if $(Q),echo "  LD    $@")
	$(Q)$(CC) $(LDFLAGS) -fsanitize=fuzzer -o $@ $^ $(filter-out $(KN_LIBS),$(ALL_LIBS))
.PHONY: fuzz-programs
fuzz-programs:
	$(Q)$(MAKE) --no-print-directory B=build/fuzz CC=clang LDFLAGS='$(FUZZ_FLAGS) -pthread' \
	  CFLAGS='-O1 -g -std=gnu11 -fPIC -pthread -fno-omit-frame-pointer $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link' $(FUZZERS)

# The same training on every mesh, held against one process: about a minute. Needs Debian's python3 with numpy.
.PHONY: exactness
exactness: $(B)/bin/trainer $(B)/bin/spctl
	$(Q)rm -rf $(B)/exactness && tests/exactness/exactness.py $^ $(B)/exactness
