// Codes with which the server closes a page's socket for good; learner_agent/wire.py has them all.
export const CloseCode = { unauthorized: 4401, forbidden: 4403, noSuchSocket: 4404 } as const;
