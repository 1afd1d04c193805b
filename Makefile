# slurm-ulysses: what is built from what. Each folder's module.mk says how its own sources become
# a library or a program; this file holds the flags, the dependencies and the commands for people.
#
#   make quickstart     Debian packages, build, private Slurm cluster, a real training run
#   make test           every test (the counts line comes last)
#   make all|check|lint|fuzz|bench|golden|install|cluster-up|cluster-down|clean
#
#   SANITIZE=1          ASan+UBSan build under build/asan      V=1  show commands      WERROR=0  warnings stay warnings
SHELL := /bin/bash
.DEFAULT_GOAL := all
MAKEFLAGS += --no-builtin-rules
VERSION := 0.1.0

SANITIZE ?= 0
WERROR   ?= 1
V        ?= 0
CC       ?= gcc
ifeq ($(origin CC),default)
CC := gcc
endif
B := build$(if $(filter 1,$(SANITIZE)),/asan)
Q := $(if $(filter 1,$(V)),,@)

# ---- Debian packages: build, run, test -------------------------------------------------------------------
DEB_BUILD := build-essential pkg-config git libslurm-dev libpmix-dev libopenmpi-dev libhdf5-dev libdnnl-dev \
             libjansson-dev libyaml-dev libpcre2-dev libutf8proc-dev libxxhash-dev
DEB_RUN   := slurmctld slurmd slurm-client munge openmpi-bin iproute2 util-linux fortunes
DEB_TEST  := libcmocka-dev bats python3-h5py valgrind clang libclang-rt-dev

# ---- flags ---------------------------------------------------------------------------------------------
pkg = $(shell pkg-config --$(2) $(1) 2>/dev/null)
PREFIX ?= /usr/local
MULTIARCH := $(shell $(CC) -print-multiarch 2>/dev/null)

CPPFLAGS += -I. -D_GNU_SOURCE -DSU_VERSION=\"$(VERSION)\"
CFLAGS   ?= -O2 -g
CFLAGS   += -std=gnu11 -fPIC -fvisibility=hidden -pthread -Wall -Wextra -Wshadow -Wvla -Wstrict-prototypes \
            -Wmissing-prototypes -Wpointer-arith -Wformat=2 -fstack-protector-strong $(if $(filter 1,$(WERROR)),-Werror)
LDFLAGS  += -pthread -Wl,-z,relro,-z,now
ifeq ($(SANITIZE),1)
CFLAGS   += -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
LDFLAGS  += -fsanitize=address,undefined
endif

HDF5_CFLAGS = $(call pkg,hdf5-serial,cflags)
HDF5_LIBS   = $(call pkg,hdf5-serial,libs) -lhdf5
MPI_CFLAGS  = $(call pkg,ompi-c,cflags)
MPI_LIBS    = $(call pkg,ompi-c,libs)
PMIX_CFLAGS = -I/usr/lib/$(MULTIARCH)/pmix2/include
PMIX_LIBS   = -L/usr/lib/$(MULTIARCH)/pmix2/lib -lpmix
IO_LIBS     = $(HDF5_LIBS) -ljansson -lyaml -lpcre2-8 -lutf8proc -lxxhash
KN_LIBS     = -ldnnl -lgomp

# ---- modules -------------------------------------------------------------------------------------------
# $(call archive,path,objects)
define archive
$(1): $(2)
	@mkdir -p $$(@D)
	@$(if $(Q),echo "  AR    $$@")
	$(Q)rm -f $$@ && ar rcs $$@ $$^
endef

PROGRAMS :=
LIBRARIES :=
include kernels/module.mk io/module.mk libsp/module.mk spank/module.mk trainer/module.mk tests/module.mk

all: $(LIBRARIES) $(PROGRAMS)

# Every object lies under $(B)/obj at its source's path; a module may add flags for its own with OBJFLAGS.
$(B)/obj/%.o: %.c
	@mkdir -p $(@D)
	@$(if $(Q),echo "  CC    $<")
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(OBJFLAGS) -MMD -MP -c $< -o $@

-include $(shell find $(B)/obj $(B)/tests -name '*.d' 2>/dev/null)

# ---- for people ------------------------------------------------------------------------------------------
.PHONY: all deps quickstart test check lint fuzz bench golden install cluster-up cluster-down clean format
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
JOBS ?= $(shell nproc)
SUBMAKE = $(MAKE) --no-print-directory $(if $(findstring -j,$(MAKEFLAGS)),,-j$(JOBS))

deps:
	@missing=; for p in $(DEB_BUILD) $(DEB_RUN) $(DEB_TEST); do \
	  dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; done; \
	if [ -z "$$missing" ]; then echo "deps: all Debian packages are there"; else \
	  echo "deps: installing$$missing"; $(SUDO) apt-get update -qq && \
	  $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; fi

quickstart: deps
	$(Q)$(SUBMAKE) all
	$(Q)tests/cluster/quickstart.sh

# Everything the suites need, then the suites (tests/run.sh says which). TESTS="lint unit" chooses some.
test:
	$(Q)$(SUBMAKE) all unit-tests
	$(Q)$(SUBMAKE) SANITIZE=1 unit-tests
	$(Q)$(SUBMAKE) fuzz-programs
	$(Q)tests/run.sh $(TESTS)
# The quick part: no cluster, no sanitizers.
check:
	$(Q)$(SUBMAKE) all unit-tests
	$(Q)tests/run.sh lint unit
lint:
	$(Q)tests/run.sh lint
# Longer fuzzing: FUZZ_SECONDS each.
fuzz:
	$(Q)$(SUBMAKE) fuzz-programs
	$(Q)FUZZ_SECONDS=$${FUZZ_SECONDS:-60} tests/run.sh fuzz

cluster-up: all
	$(Q)tests/cluster/cluster.sh up $(NODES)
cluster-down:
	$(Q)tests/cluster/cluster.sh down

format:
	clang-format -i $$(git ls-files '*.c' '*.h')

clean: cluster-down
	rm -rf build
