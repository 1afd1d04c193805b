# spank: the SPANK plugin. Links the libc-only environment contract and nothing else; every other symbol is the host's.
SPANK_OBJS := $(patsubst %.c,$(B)/obj/%.o,$(wildcard spank/*.c))
SPANK := $(B)/lib/spank_sp.so
$(SPANK): $(SPANK_OBJS) $(LIBSPENV) spank/spank_sp.lds
	@mkdir -p $(@D)
	@$(if $(Q),echo "  LD    $@")
	$(Q)$(CC) -shared $(LDFLAGS) -Wl,--version-script=spank/spank_sp.lds -o $@ $(SPANK_OBJS) $(LIBSPENV)
LIBRARIES += $(SPANK)
