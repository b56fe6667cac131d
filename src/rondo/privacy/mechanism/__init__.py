"""The Gaussian mechanism: the clip, the noise, and the secret draws."""
