# SPDX-License-Identifier: Apache-2.0
"""Other packages; each module imports its package when one of its functions is called."""
