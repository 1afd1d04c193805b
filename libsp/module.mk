# libsp: process mesh, communicators, partition, Ulysses exchange. libspenv.a is the libc-only part the plugin links.
SPENV_OBJS := $(B)/obj/libsp/sp_env.o
SP_OBJS := $(patsubst %.c,$(B)/obj/%.o,$(filter-out libsp/sp_env.c,$(wildcard libsp/*.c)))
$(SP_OBJS): OBJFLAGS = $(MPI_CFLAGS) $(PMIX_CFLAGS)
LIBSPENV := $(B)/lib/libspenv.a
LIBSPCORE := $(B)/lib/libspcore.a
LIBSP := $(B)/lib/libsp.so
$(eval $(call archive,$(LIBSPENV),$(SPENV_OBJS)))
$(eval $(call archive,$(LIBSPCORE),$(SP_OBJS)))
$(LIBSP): $(LIBSPCORE) $(LIBSPENV) $(LIBKERNELS)
	@$(if $(Q),echo "  LD    $@")
	$(Q)$(CC) -shared $(LDFLAGS) -Wl,-soname,libsp.so.0 -o $@ -Wl,--whole-archive $^ -Wl,--no-whole-archive \
	  $(MPI_LIBS) $(PMIX_LIBS) $(KN_LIBS) -lm
LIBRARIES += $(LIBSP)
