/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBSP_SP_H
#define LIBSP_SP_H
/*
 * libsp: the process mesh of a Slurm job and the Ulysses exchange, for any C, C++ or Fortran program.
 *
 *   sp_env.h   names and parsing of the SP_* environment, placement rules        (libc only)
 *   sp_plan.h  head and token partition, buffer layouts                          (pure)
 *   sp_mesh.h  start-up over PMIx, agreement, communicators, abort
 *   sp_comm.h  block exchange and ordered reductions over self, loop or MPI
 *   sp_attn.h  Ulysses attention, forward and backward
 */
#ifdef __cplusplus
extern "C" {
#endif
#include "libsp/sp_env.h"
#include "libsp/sp_err.h"
#include "libsp/sp_plan.h"
#include "libsp/sp_comm.h"
#include "libsp/sp_mesh.h"
#include "libsp/sp_attn.h"
#ifdef __cplusplus
}
#endif
#endif
