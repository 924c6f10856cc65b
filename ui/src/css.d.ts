// SPDX-License-Identifier: MIT OR Apache-2.0
// Style sheets are imported for their effect; Vite collects them.
declare module "*.css";
