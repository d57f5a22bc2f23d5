/* VELOC's interface for C, on top of Outcrop.
 *
 * All functions return VELOC_SUCCESS or VELOC_FAILURE where nothing else is said; what went wrong is on stderr. With several ranks, those that
 * begin, end, test and finalise are called by all. Define VELOC_NO_MPI to do without MPI and VELOC_Init. */
#ifndef OUTCROP_VELOC_H
#define OUTCROP_VELOC_H

#include "veloc/defs.h"

#include <stddef.h>
#include <string.h>

#ifndef VELOC_NO_MPI
#include <mpi.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

#ifndef VELOC_NO_MPI
/* Begins, after MPI_Init, with all processes of a communicator. */
int VELOC_Init(MPI_Comm comm, const char *cfg_file);
#endif
/* Begins without MPI: this process checkpoints by itself, under a number that no other one uses in the same directories. */
int VELOC_Init_single(unsigned int id, const char *cfg_file);
/* Ends, before MPI_Finalize. With drain, it fails if a checkpoint under way has failed. */
int VELOC_Finalize(int drain);

/* Protects count elements of base_size bytes from now on, in place of a region that had this id. */
int VELOC_Mem_protect(int id, void *ptr, size_t count, size_t base_size);
int VELOC_Mem_unprotect(int id);
int VELOC_Mem_clear(void);
/* The same for checkpoints of one name, which then do not have those above. */
int VELOC_Region_protect(int id, void *ptr, size_t count, size_t base_size, const char *name);
int VELOC_Region_unprotect(int id, const char *name);
int VELOC_Region_clear(const char *name);

/* Between begin and end: the path that the program itself writes to or reads from, in a buffer of VELOC_MAX_NAME bytes. */
int VELOC_Route_file(const char *original, char *routed);
/* Removes what the scratch directory has of a name. */
int VELOC_Cleanup(const char *name);

/* A checkpoint: begin, memory or a routed file, end. Memory is saved as it is when VELOC_Checkpoint_mem or _selective is called. */
int VELOC_Checkpoint_begin(const char *name, int version);
int VELOC_Checkpoint_mem(void);
int VELOC_Checkpoint_selective(int mode, int *ids, int id_count);
int VELOC_Checkpoint_end(int success);
/* Waits until all checkpoints of this process are in all directories, and says whether that went well. */
int VELOC_Checkpoint_wait(void);
/* Whether VELOC_Checkpoint_wait would return at once: then it is VELOC_SUCCESS. */
int VELOC_Checkpoint_finished(void);
/* Wait, begin, memory and end. */
int VELOC_Checkpoint(const char *name, int version);

/* The newest version up to this one, or of all if it is 0, that all ranks have and that was read and found undamaged; VELOC_FAILURE if
 * there is none; -2 if that could not be found out, or if there are versions and none of them can be restored. With `strict = true`
 * in the configuration the program ends instead of -2. */
int VELOC_Restart_test(const char *name, int version);
/* A restart: begin, memory or a routed file, end. */
int VELOC_Restart_begin(const char *name, int version);
int VELOC_Recover_selective(int mode, int *ids, int id_count);
/* The bytes of a region that was saved; 0 if there is none; VELOC_FAILURE if there are more than an int can say. */
int VELOC_Recover_size(int id);
int VELOC_Recover_mem(void);
int VELOC_Restart_end(int success);
/* Begin, memory and end. */
int VELOC_Restart(const char *name, int version);

#ifdef __cplusplus
}
#endif

#endif
