# trainer: the two programs. main.c and spctl.c hold the mains; the rest is a library the tests link too.
TRAINER_MAINS := trainer/main.c trainer/spctl.c
LIBTRAINER := $(B)/lib/libtrainer.a
TR_OBJS := $(patsubst %.c,$(B)/obj/%.o,$(filter-out $(TRAINER_MAINS),$(wildcard trainer/*.c)))
$(eval $(call archive,$(LIBTRAINER),$(TR_OBJS)))
# Order matters: each archive before the ones it calls.
ALL_ARCHIVES := $(LIBTRAINER) $(LIBSPCORE) $(LIBSPENV) $(LIBKERNELS) $(LIBIO)
ALL_LIBS = $(MPI_LIBS) $(PMIX_LIBS) $(KN_LIBS) $(IO_LIBS) -lm
$(B)/bin/trainer: $(B)/obj/trainer/main.o $(ALL_ARCHIVES)
$(B)/bin/spctl: $(B)/obj/trainer/spctl.o $(ALL_ARCHIVES)
$(B)/bin/trainer $(B)/bin/spctl:
	@mkdir -p $(@D)
	@$(if $(Q),echo "  LD    $@")
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(ALL_LIBS)
PROGRAMS += $(B)/bin/trainer $(B)/bin/spctl
