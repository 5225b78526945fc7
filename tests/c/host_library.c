/* The part of a PMI-2 library that Nemesia asks. */
int initialized;
int PMI2_Initialized(void);
int PMI2_Initialized(void) { return initialized; }
