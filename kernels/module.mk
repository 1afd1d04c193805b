# kernels: math on one device. ref/ is the plain C oracle, cpu/ the fast one (oneDNN for matrix products).
LIBKERNELS := $(B)/lib/libkernels.a
KN_OBJS := $(patsubst %.c,$(B)/obj/%.o,$(wildcard kernels/*.c kernels/ref/*.c kernels/cpu/*.c))

# cpu/isa/ is compiled once per instruction set; the program picks at run time, so no -march for the rest.
KN_ISA_SRC := $(wildcard kernels/cpu/isa/*.c)
KN_X86 := $(findstring x86_64,$(shell $(CC) -dumpmachine))
KN_ISAS := generic $(if $(KN_X86),avx2 avx512)
KN_FLAGS_avx2 := -mavx2 -mfma
KN_FLAGS_avx512 := -mavx512f -mfma -mavx2 -mprefer-vector-width=512
KN_ISA_OBJS := $(foreach i,$(KN_ISAS),$(patsubst %.c,$(B)/obj/%.$(i).o,$(KN_ISA_SRC)))

# No fast-math: reassociation would break determinism and inf handling. errno and traps are not read here.
KN_FLAGS := -O3 -fno-math-errno -fno-trapping-math -ffp-contract=fast -fopenmp $(if $(KN_X86),-DKN_X86)
$(KN_OBJS): OBJFLAGS := $(KN_FLAGS)

define kn_isa_rule
$(B)/obj/%.$(1).o: %.c
	@mkdir -p $$(@D)
	@$(if $(Q),echo "  CC    $$< ($(1))")
	$(Q)$(CC) $$(CPPFLAGS) $$(CFLAGS) $(KN_FLAGS) $(KN_FLAGS_$(1)) -MMD -MP -c $$< -o $$@
endef
$(foreach i,$(KN_ISAS),$(eval $(call kn_isa_rule,$(i))))

$(LIBKERNELS): $(KN_OBJS) $(KN_ISA_OBJS)
	@mkdir -p $(@D)
	@$(if $(Q),echo "  AR    $@")
	$(Q)rm -f $@ && ar rcs $@ $^
