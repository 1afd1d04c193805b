# kernels: math on one device. ref/ is the plain C oracle, cpu/ the fast one (oneDNN for matrix products).
KN_OBJS := $(patsubst %.c,$(B)/obj/%.o,$(wildcard kernels/*.c kernels/ref/*.c kernels/cpu/*.c))
# No fast-math: reassociation would break determinism and inf handling. errno and traps are not read here.
$(KN_OBJS): OBJFLAGS := -O3 -fno-math-errno -fno-trapping-math -ffp-contract=fast -fopenmp
LIBKERNELS := $(B)/lib/libkernels.a
$(eval $(call archive,$(LIBKERNELS),$(KN_OBJS)))
