# spank: the SPANK plugin. Links the libc-only environment contract and nothing else; every other symbol is the host's.
SPANK_OBJS := $(patsubst %.c,$(B)/obj/%.o,$(wildcard spank/*.c))
SPANK := $(B)/lib/spank_sp.so
$(SPANK): $(SPANK_OBJS) $(LIBSPENV) spank/spank_sp.lds
	@mkdir -p $(@D)
	@$(if $(Q),echo "  LD    $@")
	$(Q)$(CC) -shared $(LDFLAGS) -Wl,--version-script=spank/spank_sp.lds -o $@ $(SPANK_OBJS) $(LIBSPENV)
LIBRARIES += $(SPANK)

# Its tests link the pure parts from an archive; test_spank_plugin loads the built plugin and plays Slurm's part itself.
LIBSPANK := $(B)/lib/libspank.a
$(eval $(call archive,$(LIBSPANK),$(SPANK_OBJS)))
SPANK_TESTS := $(patsubst tests/unit/%.c,$(B)/tests/%,$(wildcard tests/unit/test_spank_*.c))
$(SPANK_TESTS): $(B)/tests/%: $(B)/obj/tests/unit/%.o $(LIBSPANK) $(LIBSPENV) | $(SPANK)
	@mkdir -p $(@D)
	@$(if $(Q),echo "  LD    $@")
	$(Q)$(CC) $(LDFLAGS) -rdynamic -o $@ $^ -lcmocka -ldl
