# io: token shards, tokenizer, loader, safetensors, checkpoint store. No MPI, no kernels.
IO_OBJS := $(patsubst %.c,$(B)/obj/%.o,$(wildcard io/*.c))
$(IO_OBJS): OBJFLAGS = $(HDF5_CFLAGS)
LIBIO := $(B)/lib/libio.a
$(eval $(call archive,$(LIBIO),$(IO_OBJS)))
