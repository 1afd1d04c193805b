# tests: one cmocka program per tests/unit/test_*.c, linked against everything; suites are started by tests/run.sh.
UNIT_TESTS := $(patsubst tests/unit/%.c,$(B)/tests/%,$(wildcard tests/unit/test_*.c))
$(B)/tests/%: $(B)/obj/tests/unit/%.o $(ALL_ARCHIVES)
	@mkdir -p $(@D)
	@$(if $(Q),echo "  LD    $@")
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ -lcmocka $(ALL_LIBS)
.SECONDARY:
.PHONY: unit-tests
unit-tests: $(UNIT_TESTS)
